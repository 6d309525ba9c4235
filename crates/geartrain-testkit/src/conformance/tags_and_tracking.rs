//! Tags and tracking.

use super::prelude::*;

/// A put with tags.
fn put_tagged<N: AsRef<str>>(name: &str, words: impl IntoIterator<Item = N>) -> Put {
    Put { tags: Some(tags(words)), ..put("mail", name) }
}

/// New tags come behind the others, each once.
pub async fn added_tags_come_behind_the_others_once(system: System) -> Checked {
    system.at(0, put_tagged("j1", ["b"])).await?;
    assert_eq!(texts(system.at(1, add_tags("j1", ["c", "a", "c", "b"])).await?), ["b", "c", "a"]);
    assert_eq!(texts(system.job("j1").await?.tags), ["b", "c", "a"]);
    assert_eq!(texts(system.ask(tagged("a")).await?.jids), ["j1"]);
    Ok(())
}

/// The tags that are left keep their order; one that is not there can be removed as well.
pub async fn removed_tags_leave_the_others_in_order(system: System) -> Checked {
    system.at(0, put_tagged("j1", ["d", "b", "a", "c"])).await?;
    assert_eq!(texts(system.at(1, remove_tags("j1", ["b", "unknown", "c"])).await?), ["d", "a"]);
    assert_eq!(texts(system.job("j1").await?.tags), ["d", "a"]);
    assert_eq!(system.ask(tagged("b")).await?, Listed::default());
    Ok(())
}

/// A put keeps repeated tags as they were given; adding never repeats one.
pub async fn a_put_keeps_repeated_tags(system: System) -> Checked {
    system.at(0, put_tagged("j1", ["t", "t"])).await?;
    assert_eq!(texts(system.job("j1").await?.tags), ["t", "t"]);
    assert_eq!(texts(system.at(1, add_tags("j1", ["t"])).await?), ["t", "t"]);
    assert_eq!(system.ask(tagged("t")).await?, Listed { total: 1, jids: jids(["j1"]) });
    Ok(())
}

/// Jobs are listed under a tag by the moment at which they got it, and those of one moment by their jids.
pub async fn tagged_jobs_are_listed_in_the_order_of_tagging(system: System) -> Checked {
    let uuid = "00000000000000000000000000000001";
    for (now, name) in [(5, "b"), (5, uuid), (5, "a"), (3, "c")] {
        system.at(now, put_tagged(name, ["t"])).await?;
    }
    assert_eq!(texts(system.ask(tagged("t")).await?.jids), ["c", uuid, "a", "b"]);
    system.at(9, add_tags("c", ["t"])).await?;
    assert_eq!(texts(system.ask(tagged("t")).await?.jids), [uuid, "a", "b", "c"]);
    system.at(9, add_tags("a", ["t"])).await?;
    assert_eq!(texts(system.ask(tagged("t")).await?.jids), [uuid, "b", "a", "c"]);
    Ok(())
}

/// A long list comes in parts, each with the number of all.
pub async fn tagged_jobs_come_in_pages(system: System) -> Checked {
    for name in ["a", "b", "c", "d"] {
        system.at(0, put_tagged(name, ["t"])).await?;
    }
    for (offset, shown, expected) in
        [(0, 2, &["a", "b"][..]), (1, 2, &["b", "c"]), (3, 9, &["d"]), (4, 1, &[]), (0, 0, &[])]
    {
        let listed = system.ask(Tagged { page: page(offset, shown), ..tagged("t") }).await?;
        assert_eq!(listed, Listed { total: 4, jids: jids(expected) });
    }
    Ok(())
}

/// The tags used at least twice are listed by how often, and equals from the last to the first.
pub async fn top_tags_are_listed_by_use(system: System) -> Checked {
    system.at(0, put_tagged("a", ["x", "y", "once", "most"])).await?;
    system.at(0, put_tagged("b", ["x", "y", "most"])).await?;
    system.at(0, put_tagged("c", ["most"])).await?;
    assert_eq!(system.top_tags().await?, ["most", "y", "x"]);
    let second = system.ask(TopTags { page: page(1, 1) }).await?;
    assert_eq!(texts(second), ["y"]);
    Ok(())
}

/// What is counted is uses, not jobs: to add a tag again counts again.
pub async fn a_tag_added_again_counts_again(system: System) -> Checked {
    system.at(0, put_tagged("j1", ["t"])).await?;
    assert_eq!(system.top_tags().await?, NONE);
    system.at(1, add_tags("j1", ["t"])).await?;
    assert_eq!(system.top_tags().await?, ["t"]);
    system.at(2, remove_tags("j1", ["t"])).await?;
    assert_eq!(system.top_tags().await?, NONE);
    Ok(())
}

/// To remove a tag that a job does not have counts as well, below zero if need be.
pub async fn an_absent_tag_removed_counts_too(system: System) -> Checked {
    system.at(0, put("mail", "j1")).await?;
    system.at(0, remove_tags("j1", ["t"])).await?;
    system.at(1, put_tagged("a", ["t"])).await?;
    system.at(1, put_tagged("b", ["t"])).await?;
    assert_eq!(system.top_tags().await?, NONE);
    system.at(1, put_tagged("c", ["t"])).await?;
    assert_eq!(system.top_tags().await?, ["t"]);
    Ok(())
}

/// A job put again is counted under its tags as often as before, and listed as newly tagged.
pub async fn putting_again_does_not_count_tags_twice(system: System) -> Checked {
    system.at(0, put_tagged("a", ["t"])).await?;
    system.at(1, put_again("mail", "a")).await?;
    assert_eq!(system.top_tags().await?, NONE);
    system.at(1, put_tagged("b", ["t"])).await?;
    system.at(2, put_again("mail", "a")).await?;
    assert_eq!(texts(system.ask(tagged("t")).await?.jids), ["b", "a"]);
    Ok(())
}

/// Tracking says whether it changed anything, both ways.
pub async fn tracking_answers_whether_it_changed_anything(system: System) -> Checked {
    system.at(0, put("mail", "j1")).await?;
    assert!(system.at(1, track("j1")).await?);
    assert!(system.job("j1").await?.tracked);
    assert!(!system.at(2, track("j1")).await?);
    assert!(system.at(3, untrack("j1")).await?);
    assert!(!system.job("j1").await?.tracked);
    assert!(!system.at(4, untrack("j1")).await?);
    Ok(())
}

/// Tracked jobs are listed in the order in which they came to be tracked.
pub async fn tracked_jobs_are_listed_in_the_order_of_tracking(system: System) -> Checked {
    for name in ["a", "b", "c"] {
        system.at(0, put("mail", name)).await?;
    }
    for (now, name) in [(3, "a"), (2, "c"), (1, "b")] {
        system.at(now, track(name)).await?;
    }
    let listed = system.ask(Tracked).await?;
    assert_eq!(listed.jobs, [system.job("b").await?, system.job("c").await?, system.job("a").await?]);
    assert_eq!(listed.expired, jids(NONE));
    Ok(())
}

/// A tracked job that is gone is listed as such, and cannot be untracked any more.
pub async fn a_tracked_job_that_is_gone_is_listed_as_expired(system: System) -> Checked {
    system.ask(set("jobs-history-count", "0")).await?;
    system.at(0, put("mail", "cancelled")).await?;
    system.at(1, track("cancelled")).await?;
    system.at(2, cancel(["cancelled"])).await?;
    system.run(2, put("mail", "dropped"), "w1").await?;
    system.at(3, track("dropped")).await?;
    system.at(4, complete("dropped", "w1")).await?;
    let listed = system.ask(Tracked).await?;
    assert_eq!((listed.jobs, texts(listed.expired)), (vec![], vec!["cancelled".into(), "dropped".into()]));
    system.refuses(5, untrack("cancelled"), no::such_job("cancelled")).await?;
    Ok(())
}

/// A job that comes back under an id that is tracked is tracked.
pub async fn a_job_put_under_a_tracked_id_is_tracked(system: System) -> Checked {
    system.at(0, put("mail", "j1")).await?;
    system.at(1, track("j1")).await?;
    system.at(2, cancel(["j1"])).await?;
    system.at(3, put("mail", "j1")).await?;
    assert!(system.job("j1").await?.tracked);
    assert_eq!(texts(system.ask(Tracked).await?.jobs.into_iter().map(|job| job.jid)), ["j1"]);
    Ok(())
}
