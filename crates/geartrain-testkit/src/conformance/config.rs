//! Options.

use std::time::Duration;

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

/// A Qless caller can set, read back and unset options that the queue does not know.
pub async fn any_option_can_be_set(system: System) -> Checked {
    assert_eq!(get(&system, "colour").await?, None);
    system.ask(set_any("colour", "")).await?;
    assert_eq!(get(&system, "colour").await?, chosen(""));
    system.ask(set_any("colour", "green")).await?;
    let all = system.ask(AllConfig).await?;
    assert_eq!((all.len(), all.get("colour").cloned()), (8, chosen("green")));
    system.ask(unset("colour")).await?;
    system.ask(unset("colour")).await?;
    assert_eq!(get(&system, "colour").await?, None);
    assert_eq!(system.ask(AllConfig).await?.len(), 7);
    Ok(())
}

/// A native caller can set only options that the queue knows, for all queues or for one, as they allow.
pub async fn unknown_options_are_refused(system: System) -> Checked {
    for name in [
        "colour",
        "hartbeat",
        "Heartbeat",
        "heartbeats",
        "mail-hartbeat",
        "-heartbeat",
        "max-concurrency",
        "grace-period-mail",
        "mail-crashes-max",
    ] {
        system.refuses(0, set(name, "5"), no::good("option")).await?;
    }
    for option in OPTIONS {
        let (before, behind) = (format!("mail-{}", option.name), format!("{}-mail", option.name));
        let names = match option.scope {
            OptionScope::Global => vec![option.name.to_owned()],
            OptionScope::Queue => vec![before, behind],
            OptionScope::Both => vec![option.name.to_owned(), before, behind],
        };
        for name in names {
            system.ask(set(&name, option.default)).await?;
            assert_eq!(get(&system, &name).await?, chosen(option.default));
        }
    }
    Ok(())
}

/// A native caller can set an option only to a value in its range.
pub async fn values_outside_the_range_of_an_option_are_refused(system: System) -> Checked {
    for option in OPTIONS {
        let name = match option.scope {
            OptionScope::Queue => format!("{}-mail", option.name),
            OptionScope::Global | OptionScope::Both => option.name.to_owned(),
        };
        let OptionValues::Number { zero, whole, max } = option.values else {
            system.ask(set(&name, "any text")).await?;
            continue;
        };
        for value in ["", "ten", "1 2", "inf", "-inf", "nan", "NaN", "1e999", "-1", "-0.5"] {
            system.refuses(0, set(&name, value), no::good("value")).await?;
        }
        system.refuses(0, set(&name, format!("{}", max * 2.0)), no::good("value")).await?;
        for (value, valid) in [("0", zero), ("12.25", !whole), ("1e3", true)] {
            if valid {
                system.ask(set(&name, value)).await?;
                assert_eq!(get(&system, &name).await?, chosen(value));
            } else {
                system.refuses(0, set(&name, value), no::good("value")).await?;
            }
        }
        system.ask(set(&name, format!("{max}"))).await?;
    }
    Ok(())
}

/// A name that is that of two options, because a queue is called like one, has the range of the first.
pub async fn a_name_of_two_options_has_the_range_of_the_first(system: System) -> Checked {
    for name in ["max-concurrency-heartbeat", "heartbeat-max-concurrency"] {
        system.ask(set(name, "0.5")).await?;
        assert_eq!(get(&system, name).await?, chosen("0.5"));
        system.refuses(0, set(name, "0"), no::good("value")).await?;
    }
    Ok(())
}

/// A value that is no finite number, set by a Qless caller, is shown and has no effect.
pub async fn a_value_that_is_no_number_counts_as_not_set(system: System) -> Checked {
    for (at, value) in ["", "ten", "1 2", "inf", "-inf", "nan", "1e999"].into_iter().enumerate() {
        for option in ["heartbeat", "mail-heartbeat", "mail-max-concurrency", "jobs-history", "crashes-max"] {
            system.ask(set_any(option, value)).await?;
            assert_eq!(get(&system, option).await?, chosen(value));
        }
        let (first, second) = (format!("a{at}"), format!("b{at}"));
        assert_eq!(system.run(0, put("mail", &first), "w1").await?.lock.expires, moment(60));
        assert_eq!(system.run(0, put("mail", &second), "w1").await?.lock.expires, moment(60));
        system.at(1, complete(&first, "w1")).await?;
        assert!(system.has(&first).await?);
    }
    system.ask(set_any("mail-heartbeat", "ten")).await?;
    system.ask(set("heartbeat-mail", "5")).await?;
    assert_eq!(system.run(0, put("mail", "c"), "w1").await?.lock.expires, moment(5));
    Ok(())
}

/// A native caller's delay ends after a hundred years; a Qless caller's need not.
pub async fn a_delay_without_end_is_refused(system: System) -> Checked {
    let endless = Seconds::from(Duration::MAX);
    system.refuses(0, Put { delay: endless, ..put("mail", "j1") }, no::good("delay")).await?;
    system.at(0, Put { delay: DELAY_MAX, ..put("mail", "century") }).await?;
    system.at(0, Put { delay: endless, cycles: Cycles::Accept, ..put("mail", "qless") }).await?;
    let popped = system.run(0, put("mail", "j2"), "w1").await?;
    let token = Holder::Token(popped.lock.token);
    let next = Some(Next { delay: endless, ..Next::new(queue("post")) });
    let advance = Complete { next, ..Complete::new(jid("j2"), token.clone()) };
    system.refuses(1, advance, no::good("delay")).await?;
    system.refuses(1, Retry { delay: endless, ..Retry::new(jid("j2"), token) }, no::good("delay")).await?;
    system.at(1, Retry { delay: endless, ..retry("j2", "w1") }).await?;
    let mut scheduled = system.list(2, Listing::Scheduled(queue("mail"))).await?;
    scheduled.sort();
    assert_eq!(scheduled, ["century", "j2", "qless"]);
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
