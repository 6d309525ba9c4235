//! Options.

use super::prelude::*;

/// Looks an option up.
async fn get(system: &System, option: &str) -> Result<Option<Setting>, BackendError> {
    system.ask(GetConfig { option: option.into() }).await
}

fn chosen(value: &str) -> Option<Setting> {
    Some(Setting::Chosen(value.into()))
}

/// A fresh system has the defaults of seven options.
pub async fn seven_options_have_defaults(system: System) -> Checked {
    let all: Vec<(String, Setting)> = system.ask(AllConfig).await?.into_iter().collect();
    let expected = [
        ("application", "qless"),
        ("grace-period", "10"),
        ("heartbeat", "60"),
        ("histogram-history", "7"),
        ("jobs-history", "604800"),
        ("jobs-history-count", "50000"),
        ("stats-history", "30"),
    ];
    assert_eq!(all, expected.map(|(option, value)| (option.to_string(), Setting::Default(value.into()))));
    for (option, value) in expected {
        assert_eq!(get(&system, option).await?, Some(Setting::Default(value.into())));
    }
    Ok(())
}

/// An option that was set says so and is kept as it was written, until it is put back to its default.
pub async fn an_option_can_be_set_and_unset(system: System) -> Checked {
    system.ask(set("heartbeat", "1e2")).await?;
    assert_eq!(get(&system, "heartbeat").await?, chosen("1e2"));
    assert_eq!(system.run(0, put("mail", "j1"), "w1").await?.lock.expires, moment(100));
    system.ask(unset("heartbeat")).await?;
    assert_eq!(get(&system, "heartbeat").await?, Some(Setting::Default("60".into())));
    assert_eq!(system.run(0, put("mail", "j2"), "w1").await?.lock.expires, moment(60));
    Ok(())
}

/// Unknown options can be set, read back and unset.
pub async fn any_option_can_be_set(system: System) -> Checked {
    assert_eq!(get(&system, "colour").await?, None);
    system.ask(set("colour", "")).await?;
    assert_eq!(get(&system, "colour").await?, chosen(""));
    system.ask(set("colour", "green")).await?;
    let all = system.ask(AllConfig).await?;
    assert_eq!((all.len(), all.get("colour").cloned()), (8, chosen("green")));
    system.ask(unset("colour")).await?;
    system.ask(unset("colour")).await?;
    assert_eq!(get(&system, "colour").await?, None);
    assert_eq!(system.ask(AllConfig).await?.len(), 7);
    Ok(())
}

/// Options that are read as numbers take numbers only: fractions and negative ones too, but no infinite ones.
pub async fn options_that_are_numbers_take_numbers_only(system: System) -> Checked {
    for option in [
        "heartbeat",
        "grace-period",
        "stats-history",
        "histogram-history",
        "jobs-history",
        "jobs-history-count",
        "max-worker-age",
        "max-job-history",
        "mail-heartbeat",
        "heartbeat-mail",
        "mail-max-concurrency",
        "max-concurrency-mail",
    ] {
        for value in ["", "ten", "1 2", "inf", "-inf", "nan", "NaN", "1e999"] {
            system.refuses(0, set(option, value), no::good("value")).await?;
        }
        for value in ["0", "-1.5", "1e3", "12.25"] {
            system.ask(set(option, value)).await?;
            assert_eq!(get(&system, option).await?, chosen(value));
        }
    }
    Ok(())
}

/// Options whose names only look like those of numbers take any text.
pub async fn other_options_take_any_text(system: System) -> Checked {
    for option in ["application", "heartbeats", "myheartbeat", "max-concurrency!"] {
        system.ask(set(option, "any text")).await?;
        assert_eq!(get(&system, option).await?, chosen("any text"));
    }
    Ok(())
}

/// A queue may have locks of its own length, and the option may have the queue's name before or behind.
pub async fn a_queue_may_have_a_heartbeat_of_its_own(system: System) -> Checked {
    system.ask(set("heartbeat", "30")).await?;
    system.ask(set("heartbeat-mail", "5")).await?;
    system.ask(set("a-b-heartbeat", "7")).await?;
    assert_eq!(system.run(0, put("mail", "j1"), "w1").await?.lock.expires, moment(5));
    assert_eq!(system.run(0, put("a-b", "j2"), "w1").await?.lock.expires, moment(7));
    assert_eq!(system.run(0, put("b", "j3"), "w1").await?.lock.expires, moment(30));
    system.ask(set("mail-heartbeat", "6")).await?;
    assert_eq!(system.at(1, heartbeat("j1", "w1")).await?, moment(7));
    system.ask(unset("mail-heartbeat")).await?;
    assert_eq!(system.at(1, heartbeat("j1", "w1")).await?, moment(6));
    Ok(())
}

/// A limit of places may be named either way too, and the one with the queue's name before wins.
pub async fn a_concurrency_may_be_named_either_way(system: System) -> Checked {
    for name in ["a", "b", "c"] {
        system.at(0, put("mail", name)).await?;
    }
    system.ask(set("max-concurrency-mail", "1")).await?;
    assert_eq!(system.pop(0, "mail", "w1", 3).await?, ["a"]);
    system.ask(set("mail-max-concurrency", "2")).await?;
    assert_eq!(system.pop(0, "mail", "w1", 3).await?, ["b"]);
    system.ask(unset("max-concurrency-mail")).await?;
    system.ask(unset("mail-max-concurrency")).await?;
    assert_eq!(system.pop(0, "mail", "w1", 3).await?, ["c"]);
    Ok(())
}

/// The length of a lock is that of the moment at which it was given.
pub async fn a_new_heartbeat_leaves_old_locks_alone(system: System) -> Checked {
    system.run(0, put("mail", "j1"), "w1").await?;
    system.ask(set("heartbeat", "5")).await?;
    assert_eq!(system.list(59, Listing::Running(queue("mail"))).await?, ["j1"]);
    assert_eq!(system.at(1, heartbeat("j1", "w1")).await?, moment(6));
    Ok(())
}

/// The grace is that of the moment of the warning.
pub async fn the_grace_can_be_set(system: System) -> Checked {
    system.ask(set("grace-period", "2.5")).await?;
    system.run(0, put("mail", "j1"), "w1").await?;
    assert_eq!(system.pop(60, "mail", "w2", 1).await?, NONE);
    assert_eq!(system.pop(62.4, "mail", "w2", 1).await?, NONE);
    assert_eq!(system.pop(62.5, "mail", "w2", 1).await?, ["j1"]);
    Ok(())
}
