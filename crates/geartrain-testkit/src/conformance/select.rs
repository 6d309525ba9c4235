//! Jobs by filter, page by page, and bulk changes of them.

use std::collections::BTreeSet;

use super::prelude::*;

fn filter(text: &str) -> Filter {
    text.parse().expect("a case's filters are good ones")
}

fn selects(text: &str) -> Select {
    Select::new(filter(text))
}

fn put_of(kind: &str, to: &str, job: &str) -> Put {
    Put { klass: klass(kind), ..put(to, job) }
}

fn put_args(job: &str, payload: impl Into<Payload>) -> Put {
    Put::new(queue("mail"), jid(job), klass("k"), payload)
}

/// The jobs that a filter selects, all pages together.
async fn found(system: &System, now: i32, text: &str) -> Result<Vec<String>, Surprise> {
    let mut select = selects(text);
    let mut jobs = Vec::new();
    loop {
        let page = system.at(now, select.clone()).await?;
        jobs.extend(texts(page.jobs.into_iter().map(|job| job.jid)));
        select.after = page.next;
        if select.after.is_none() {
            jobs.sort();
            return Ok(jobs);
        }
    }
}

/// Does something to all jobs that a filter selects, with pages of this size. Returns acted, unchanged,
/// refused.
async fn done(
    system: &System,
    now: i32,
    text: &str,
    act: BulkAct,
    size: i64,
) -> Result<(u64, u64, u64), Surprise> {
    let mut act = Act { count: count(size), ..Act::new(filter(text), act) };
    let mut sum = (0, 0, 0);
    loop {
        let page = system.at(now, act.clone()).await?;
        sum = (sum.0 + page.acted, sum.1 + page.unchanged, sum.2 + page.refused);
        assert_eq!(page.again, Vec::<Jid>::new());
        act.after = page.next;
        if act.after.is_none() {
            return Ok(sum);
        }
    }
}

const CANCEL: BulkAct = BulkAct::Cancel { because: None };

/// One job in each state, each with the state as its name; `stalled` is running with an expired lock at 100.
async fn one_in_each_state(system: &System) -> Result<(), Surprise> {
    system.at(0, put_of("alpha", "mail", "stalled")).await?;
    assert_eq!(popped_jids(system.at(1, pop("mail", "w1")).await?), ["stalled"]);
    system.at(2, put_of("beta", "mail", "complete")).await?;
    assert_eq!(popped_jids(system.at(3, pop("mail", "w1")).await?), ["complete"]);
    system.at(4, complete("complete", "w1")).await?;
    system.at(5, put_of("alpha", "mail", "failed")).await?;
    assert_eq!(popped_jids(system.at(6, pop("mail", "w1")).await?), ["failed"]);
    system.at(7, fail("failed", "w1", "smtp")).await?;
    system.at(8, put_of("beta", "news", "running")).await?;
    assert_eq!(popped_jids(system.at(90, pop("news", "w2")).await?), ["running"]);
    system.at(91, Put { tags: Some(tags(["new", "hot"])), ..put_of("alpha", "mail", "waiting") }).await?;
    system.at(92, Put { delay: seconds(1_000), ..put_of("alpha", "mail", "scheduled") }).await?;
    system.at(93, Put { depends: jids(["waiting"]), ..put_of("beta", "news", "depends") }).await?;
    Ok(())
}

/// Every field selects by itself, and several are joined by and.
pub async fn a_filter_selects_by_each_field(system: System) -> Checked {
    one_in_each_state(&system).await?;
    let all = ["complete", "depends", "failed", "running", "scheduled", "stalled", "waiting"];
    for (text, expected) in [
        ("", &all[..]),
        ("queue=mail", &["complete", "failed", "scheduled", "stalled", "waiting"]),
        ("queue=news", &["depends", "running"]),
        ("queue=unknown", &[]),
        ("klass=beta", &["complete", "depends", "running"]),
        ("klass=unknown", &[]),
        ("state=waiting", &["waiting"]),
        ("state=scheduled", &["scheduled"]),
        ("state=depends", &["depends"]),
        ("state=running", &["running", "stalled"]),
        ("state=stalled", &["stalled"]),
        ("state=failed", &["failed"]),
        ("state=complete", &["complete"]),
        ("tag=new", &["waiting"]),
        ("tag=new tag=hot", &["waiting"]),
        ("tag=new tag=cold", &[]),
        ("group=smtp", &["failed"]),
        ("group=smtp state=waiting", &[]),
        ("worker=w1", &["stalled"]),
        ("worker=w2", &["running"]),
        ("worker=w2 queue=mail", &[]),
        ("queue=mail klass=alpha state=failed", &["failed"]),
        ("queue=news state=running klass=beta", &["running"]),
    ] {
        assert_eq!(found(&system, 100, text).await?, expected, "{text}");
    }
    Ok(())
}

/// What a list needs comes with each job, the first put first.
pub async fn a_selected_job_is_shown_in_short(system: System) -> Checked {
    one_in_each_state(&system).await?;
    system.at(95, set_priority("waiting", 3)).await?;
    let page = system.at(100, selects("")).await?;
    assert_eq!((page.next, page.unread), (None, None));
    assert!(page.examined >= 7, "{}", page.examined);
    let names = texts(page.jobs.iter().map(|job| &job.jid));
    assert_eq!(names, ["stalled", "complete", "failed", "running", "waiting", "scheduled", "depends"]);
    let [stalled, complete, failed, _, waiting, ..] = &page.jobs[..] else {
        panic!("{page:?}", page = page.jobs)
    };
    assert_eq!(
        *stalled,
        Selected {
            jid: jid("stalled"),
            queue: Some(queue("mail")),
            klass: klass("alpha"),
            state: StateName::Running,
            stalled: true,
            priority: Priority::ZERO,
            put: moment(0),
            attempts: 1,
            worker: Some(worker("w1")),
            group: None,
        }
    );
    assert_eq!(
        (complete.queue.clone(), complete.attempts, &complete.worker),
        (Some(queue("mail")), 0, &None)
    );
    assert_eq!((failed.group.clone(), failed.attempts, &failed.worker), (Some(group("smtp")), 1, &None));
    assert_eq!((waiting.priority, waiting.put, waiting.attempts), (priority(3), moment(91), 0));
    Ok(())
}

/// A complete job is in no queue, and is found by the last one that it was in.
pub async fn complete_jobs_are_selected_by_their_last_queue(system: System) -> Checked {
    for job in ["a", "b"] {
        system.run(0, put("mail", job), "w1").await?;
    }
    system.at(1, complete("a", "w1")).await?;
    system.at(1, advance("b", "w1", "news")).await?;
    assert_eq!(popped_jids(system.at(2, pop("news", "w1")).await?), ["b"]);
    system.at(3, log("b", "put")).await?;
    system.at(3, complete("b", "w1")).await?;
    assert_eq!(found(&system, 4, "state=complete queue=mail").await?, ["a"]);
    assert_eq!(found(&system, 4, "state=complete queue=news").await?, ["b"]);
    assert_eq!(found(&system, 4, "queue=news").await?, ["b"]);
    Ok(())
}

/// The age is that of the first put; attempts are those that cost a retry, and the current one.
pub async fn ages_and_attempts_are_compared(system: System) -> Checked {
    system.at(0, put("mail", "old")).await?;
    system.at(50, put_again("news", "old")).await?;
    system.at(60, put("mail", "new")).await?;
    for now in [61, 62] {
        assert_eq!(popped_jids(system.at(now, pop("mail", "w1")).await?), ["new"]);
        system.at(now, retry("new", "w1")).await?;
    }
    for (text, expected) in [
        ("age>100s", &[][..]),
        ("age>=100s", &["old"]),
        ("age>40s", &["old"]),
        ("age>=40s", &["new", "old"]),
        ("age<40s", &[]),
        ("age<=40s", &["new"]),
        ("attempts=2", &["new"]),
        ("attempts>=1", &["new"]),
        ("attempts<2", &["old"]),
        ("attempts>2", &[]),
    ] {
        assert_eq!(found(&system, 100, text).await?, expected, "{text}");
    }
    assert_eq!(popped_jids(system.at(100, pop("mail", "w1")).await?), ["new"]);
    assert_eq!(found(&system, 100, "attempts=3").await?, ["new"]);
    system.at(101, fail("new", "w1", "smtp")).await?;
    assert_eq!(found(&system, 101, "attempts=3 state=failed").await?, ["new"]);
    Ok(())
}

/// A payload that has nothing there does not match, and one that is not JSON is counted; numbers are compared
/// exactly.
pub async fn payloads_are_selected_by_a_path(system: System) -> Checked {
    for (job, payload) in [
        ("a", r#"{"user": {"id": 42, "name": "Ann é"}, "list": [1, {"x": "y"}], "big": 9007199254740993}"#),
        ("b", r#"{"user": {"id": "42", "ok": true}, "list": [], "big": 9007199254740992}"#),
        ("c", r#"{"user": {"id": 42.0, "none": null}, "0": "zero", "list": {"0": 1}}"#),
        ("d", "no JSON"),
        ("e", ""),
        ("f", "12345678901234567"),
        ("g", r#"{"$bytes":"aGk="}"#),
    ] {
        system.at(0, put_args(job, payload)).await?;
    }
    for (text, expected) in [
        ("args.user.id=42", &["a", "b", "c"][..]),
        ("args.user.id=\"42\"", &["b"]),
        ("args.user.id=43", &[]),
        ("args.user.name=\"Ann é\"", &["a"]),
        ("args.list.0=1", &["a", "c"]),
        ("args.list.1.x=y", &["a"]),
        ("args.0=zero", &["c"]),
        ("args.big=9007199254740993", &["a"]),
        ("args.big=9007199254740992", &["b"]),
        ("args.user.ok=true", &["b"]),
        ("args.user.none=null", &["c"]),
        ("args.user=42", &[]),
        ("args=12345678901234567", &["f"]),
        ("args=12345678901234568", &[]),
        ("args.$bytes=aGk=", &[]),
        ("queue=mail state=waiting args.user.id=42 args.big=9007199254740993", &["a"]),
        ("queue=news args.user.id=42", &[]),
    ] {
        assert_eq!(found(&system, 1, text).await?, expected, "{text}");
    }
    for (text, not_json) in [("args.user.id=42", 3), ("queue=news args.user.id=42", 0), ("queue=mail", 0)] {
        assert_eq!(system.at(1, selects(text)).await?.not_json, not_json, "{text}");
    }
    Ok(())
}

/// Pages of any size have each job once, in whichever state it is, if nothing changes between them.
pub async fn pages_together_show_each_job_once(system: System) -> Checked {
    let name = |kind: &str, number: usize| format!("{kind}{number:02}");
    for number in 0..9 {
        system.run(0, put("mail", name("complete", number)), "w1").await?;
        system.at(0, complete(&name("complete", number), "w1")).await?;
        system.run(0, put("mail", name("failed", number)), "w1").await?;
        system.at(0, fail(&name("failed", number), "w1", "smtp")).await?;
        system.run(0, put("mail", name("running", number)), "w1").await?;
    }
    for number in 0..9 {
        // Some have equal scores and due times.
        let later = Put { delay: seconds(50 + number as i32 / 3), ..put("mail", name("scheduled", number)) };
        system.at(number as i32 / 3, later).await?;
        system.at(0, Put { depends: jids(["running00"]), ..put("mail", name("depends", number)) }).await?;
        system.at(number as i32 / 3, put("mail", name("waiting", number))).await?;
        system.at(1, AddTags { jid: jid(name("waiting", number)), tags: tags(["t"]) }).await?;
    }
    for (text, expected) in [
        ("queue=mail", 54),
        ("queue=mail state=waiting", 9),
        ("queue=mail state=scheduled", 9),
        ("queue=mail state=depends", 9),
        ("queue=mail state=complete", 9),
        ("worker=w1", 9),
        ("group=smtp", 9),
        ("tag=t", 9),
    ] {
        for size in [1, 2, 5] {
            let mut select = Select { count: count(size), ..selects(text) };
            let mut seen = Vec::new();
            loop {
                let page = system.at(3, select.clone()).await?;
                seen.extend(texts(page.jobs.into_iter().map(|job| job.jid)));
                assert!(seen.len() <= expected, "{text}, pages of {size}: {seen:?}");
                select.after = page.next;
                if select.after.is_none() {
                    break;
                }
            }
            assert_eq!(seen.len(), expected, "{text}, pages of {size}: {seen:?}");
            let distinct: BTreeSet<_> = seen.iter().collect();
            assert_eq!(distinct.len(), expected, "{text}, pages of {size}: {seen:?}");
        }
    }
    Ok(())
}

/// A job that is selected all the time is on one page, whatever happens to others between two pages.
pub async fn pages_show_a_job_once_while_others_come_and_go(system: System) -> Checked {
    let name = |number: usize| format!("j{number:03}");
    for number in 0..60 {
        system.at(number as i32 / 7, put("mail", name(number))).await?;
    }
    let mut select = Select { count: count(7), ..selects("queue=mail state=waiting") };
    let (mut seen, mut removed, mut pages) = (Vec::new(), BTreeSet::new(), 0);
    loop {
        let page = system.at(20, select.clone()).await?;
        assert!(page.jobs.len() <= 7);
        seen.extend(texts(page.jobs.iter().map(|job| &job.jid)));
        select.after = page.next;
        if select.after.is_none() {
            break;
        }
        // One that was shown, the first and the last are cancelled; others arrive.
        let last = seen.last().cloned().unwrap_or_default();
        for gone in [last, name(pages), name(59 - pages)] {
            if removed.insert(gone.clone()) {
                system.at(20, cancel([gone])).await?;
            }
        }
        system.at(30, Put { priority: Some(priority(9)), ..put("mail", format!("x{pages}")) }).await?;
        pages += 1;
    }
    assert!(pages >= 5, "{pages}");
    assert_eq!(seen.len(), seen.iter().collect::<BTreeSet<_>>().len(), "{seen:?}");
    for number in 0..60 {
        assert!(seen.contains(&name(number)) || removed.contains(&name(number)), "{number} of {seen:?}");
    }
    Ok(())
}

/// The same for failed jobs, which are in the order of their failures.
pub async fn pages_show_a_failed_job_once_while_others_are_unfailed(system: System) -> Checked {
    let name = |number: usize| format!("j{number:03}");
    for number in 0..40 {
        system.run(number as i32, put("mail", name(number)), "w1").await?;
        system.at(number as i32, fail(&name(number), "w1", "smtp")).await?;
    }
    let mut select = Select { count: count(6), ..selects("group=smtp") };
    let (mut seen, mut removed) = (Vec::new(), BTreeSet::new());
    loop {
        let page = system.at(50, select.clone()).await?;
        seen.extend(texts(page.jobs.iter().map(|job| &job.jid)));
        select.after = page.next;
        if select.after.is_none() {
            break;
        }
        // Two that were shown go, but not the one that was shown last.
        for gone in [seen[seen.len() - 2].clone(), seen[seen.len() - 4].clone()] {
            if removed.insert(gone.clone()) {
                system.at(50, cancel([gone])).await?;
            }
        }
        let late = format!("x{}", removed.len());
        system.run(60, put("news", &late), "w1").await?;
        system.at(60, fail(&late, "w1", "smtp")).await?;
    }
    assert_eq!(seen.len(), seen.iter().collect::<BTreeSet<_>>().len(), "{seen:?}");
    (0..40).for_each(|number| assert!(seen.contains(&name(number)), "{number} of {seen:?}"));
    Ok(())
}

/// Jobs in a queue that is in no list are found too.
pub async fn jobs_of_forgotten_queues_are_selected(system: System) -> Checked {
    system.at(0, put("mail", "a")).await?;
    system.run(1, put("news", "b"), "w1").await?;
    system.at(2, fail("b", "w1", "smtp")).await?;
    system.ask(ForgetQueues { queues: queues(["mail", "news"]) }).await?;
    system.at(3, unfail("never-listed", "smtp", 1)).await?;
    assert_eq!(found(&system, 4, "").await?, ["a", "b"]);
    assert_eq!(found(&system, 4, "state=waiting klass=k").await?, ["a", "b"]);
    assert_eq!(found(&system, 4, "queue=never-listed").await?, ["b"]);
    Ok(())
}

/// Selecting and changing are one step: what was selected before and is not any more stays as it is.
pub async fn an_act_changes_what_is_selected_at_that_moment(system: System) -> Checked {
    for job in ["a", "b", "c"] {
        system.at(0, put("mail", job)).await?;
    }
    assert_eq!(found(&system, 1, "queue=mail state=waiting").await?, ["a", "b", "c"]);
    assert_eq!(popped_jids(system.at(1, pop("mail", "w1")).await?), ["a"]);
    assert_eq!(done(&system, 2, "queue=mail state=waiting", CANCEL, 10).await?, (2, 0, 0));
    assert_eq!(system.state("a").await?, StateName::Running);
    assert!(!system.has("b").await? && !system.has("c").await?);
    system.at(3, complete("a", "w1")).await?;
    // Complete jobs cannot be cancelled.
    assert_eq!(done(&system, 4, "queue=mail", CANCEL, 10).await?, (0, 1, 0));
    assert_eq!(system.state("a").await?, StateName::Complete);
    Ok(())
}

/// A bulk cancel is heard of like any other, the first put first.
pub async fn bulk_cancels_are_published(system: System) -> Checked {
    for (now, job) in [(1, "b"), (0, "a")] {
        system.at(now, put("mail", job)).await?;
    }
    let mut listener = system.listen().await?;
    system.at(2, Act::new(filter("queue=mail"), CANCEL)).await?;
    let was = || Some((queue("mail"), None));
    listener
        .heard(
            &system,
            [Event::Canceled { jid: jid("a"), was: was() }, Event::Canceled { jid: jid("b"), was: was() }],
        )
        .await?;
    Ok(())
}

/// A job that others depend on goes only if they are selected too, on whatever page.
pub async fn a_dependency_is_cancelled_only_with_its_dependents(system: System) -> Checked {
    system.at(0, put("mail", "base")).await?;
    system.at(1, Put { depends: jids(["base"]), ..put("mail", "middle") }).await?;
    system.at(2, Put { depends: jids(["middle"]), ..put("news", "top") }).await?;
    let page = system.at(3, Act::new(filter("queue=mail"), CANCEL)).await?;
    assert_eq!((page.acted, page.unchanged, page.refused), (0, 0, 2));
    let is_dependency = |of: &str| Refusal::IsDependency { jid: jid(of), dependent: jid("top") };
    assert_eq!(
        page.refusals,
        [(jid("base"), is_dependency("base")), (jid("middle"), is_dependency("middle"))]
    );
    assert_eq!(found(&system, 3, "").await?, ["base", "middle", "top"]);
    // One job per page, and still all of them go.
    assert_eq!(done(&system, 4, "klass=k", CANCEL, 1).await?, (3, 0, 0));
    assert_eq!(found(&system, 4, "").await?, NONE);
    Ok(())
}

/// A job is put again as it is, from any state; what waits there already stays where it is.
pub async fn jobs_are_requeued_from_any_state(system: System) -> Checked {
    one_in_each_state(&system).await?;
    system.at(94, add_tags("failed", ["kept"])).await?;
    let requeue = |to: Option<&str>| BulkAct::Requeue { queue: to.map(queue) };
    assert_eq!(done(&system, 100, "queue=mail", requeue(None), 100).await?, (4, 1, 0));
    for job in ["complete", "failed", "scheduled", "stalled"] {
        let job = system.job(job).await?;
        assert_eq!((job.state.name(), job.queue), (StateName::Waiting, Some(queue("mail"))), "{}", job.jid);
        assert_eq!((job.remaining, job.payload), (5, "{}".into()));
    }
    assert_eq!(texts(system.job("failed").await?.tags), ["kept"]);
    assert_eq!(system.job("stalled").await?.qless.worker, None);
    refused(
        system.at(101, complete("stalled", "w1")).await,
        Refusal::NotRunning { jid: jid("stalled"), state: StateName::Waiting, qless: "waiting" },
    );
    assert_eq!(system.ask(Failures).await?.len(), 0);
    // The first put goes first; and the dependent waits for its job in the other queue.
    assert_eq!(
        popped_jids(system.at(102, pop_many("mail", "w1", 9)).await?),
        ["waiting", "stalled", "complete", "failed", "scheduled"]
    );
    assert_eq!(done(&system, 103, "state=depends", requeue(Some("mail")), 100).await?, (1, 0, 0));
    assert_eq!(system.state("depends").await?, StateName::Depends);
    assert_eq!(system.job("depends").await?.queue, Some(queue("mail")));
    Ok(())
}

/// Failed jobs go back into their queues, or into another; all others stay as they are.
pub async fn failed_jobs_are_unfailed_by_filter(system: System) -> Checked {
    for (now, job) in [(0, "a"), (1, "b"), (2, "c")] {
        system.run(now, put("mail", job), "w1").await?;
        system.at(now, fail(job, "w1", if job == "c" { "disk" } else { "smtp" })).await?;
    }
    system.at(3, put("mail", "d")).await?;
    let unfail = |to: Option<&str>| BulkAct::Unfail { queue: to.map(queue) };
    assert_eq!(done(&system, 4, "group=smtp", unfail(None), 1).await?, (2, 0, 0));
    assert_eq!(done(&system, 5, "klass=k", unfail(Some("news")), 100).await?, (1, 3, 0));
    assert_eq!(texts(system.list(6, Listing::Waiting(queue("mail"))).await?), ["d", "a", "b"]);
    assert_eq!(texts(system.list(6, Listing::Waiting(queue("news"))).await?), ["c"]);
    assert_eq!(system.ask(Failures).await?.len(), 0);
    assert_eq!(system.job("a").await?.remaining, 5);
    Ok(())
}

/// What is that way already counts as unchanged.
pub async fn priorities_and_tags_are_changed_by_filter(system: System) -> Checked {
    for (now, job) in [(0, "a"), (1, "b"), (2, "c")] {
        system.at(now, put("mail", job)).await?;
    }
    let set = |to: i32| BulkAct::SetPriority { priority: priority(to) };
    system.at(3, set_priority("b", 7)).await?;
    assert_eq!(done(&system, 4, "queue=mail", set(7), 100).await?, (2, 1, 0));
    assert_eq!(done(&system, 5, "queue=mail", set(7), 100).await?, (0, 3, 0));
    assert_eq!(system.job("c").await?.priority, priority(7));
    let add = |names: &[&str]| BulkAct::AddTags { tags: tags(names) };
    let remove = |names: &[&str]| BulkAct::RemoveTags { tags: tags(names) };
    system.at(6, add_tags("a", ["hot"])).await?;
    assert_eq!(done(&system, 7, "queue=mail", add(&["hot", "new", "hot"]), 100).await?, (3, 0, 0));
    assert_eq!(done(&system, 7, "queue=mail", add(&["hot", "new"]), 100).await?, (0, 3, 0));
    assert_eq!(texts(system.job("b").await?.tags), ["hot", "new"]);
    assert_eq!(done(&system, 8, "tag=hot klass=k", remove(&["hot", "cold"]), 100).await?, (3, 0, 0));
    assert_eq!(done(&system, 8, "queue=mail", remove(&["hot", "cold"]), 100).await?, (0, 3, 0));
    assert_eq!(texts(system.job("a").await?.tags), ["new"]);
    assert_eq!(found(&system, 9, "tag=hot").await?, NONE);
    Ok(())
}

/// More jobs than one command may change take several, each with the cursor of the one before.
pub async fn a_bulk_act_continues_after_its_cursor(system: System) -> Checked {
    let jobs = 2_300;
    let puts = (0..jobs).map(|number| put("mail", format!("j{number}")).into()).collect();
    for answer in system.backend.execute(puts).await? {
        answer?;
    }
    for (now, job) in [(10, "x"), (11, "y")] {
        system.at(now, put("news", job)).await?;
    }
    let set = BulkAct::SetPriority { priority: priority(-5) };
    let first = system.at(20, Act::new(filter("queue=mail"), set.clone())).await?;
    assert!(first.acted <= 1_000 && first.next.is_some(), "{first:?}");
    let rest = Act { after: first.next, ..Act::new(filter("queue=mail"), set.clone()) };
    let second = system.at(21, rest).await?;
    assert!(second.acted <= 1_000 && second.next.is_some(), "{second:?}");
    let (acted, _, refused) = done(&system, 22, "queue=mail", set, 1_000).await?;
    assert_eq!((first.acted + second.acted + acted, refused), (jobs as u64, 0));
    assert_eq!(done(&system, 23, "queue=mail", CANCEL, 1_000).await?, (jobs as u64, 0, 0));
    assert_eq!(found(&system, 24, "").await?, ["x", "y"]);
    Ok(())
}

/// Jobs that are named are changed if the filter selects them; their payloads are not compared.
pub async fn an_act_on_named_jobs_compares_all_but_the_payload(system: System) -> Checked {
    for job in ["a", "b", "c"] {
        system.at(0, put_args(job, "{}")).await?;
    }
    assert_eq!(popped_jids(system.at(1, pop("mail", "w1")).await?), ["a"]);
    let named =
        Act { only: jids(["a", "b", "unknown", "b"]), ..Act::new(filter("state=waiting args.x=1"), CANCEL) };
    let page = system.at(2, named).await?;
    assert_eq!((page.acted, page.unchanged, page.refused, page.next), (1, 0, 0, None));
    assert_eq!(found(&system, 3, "").await?, ["a", "c"]);
    Ok(())
}

/// Bad counts, cursors, filters and tags are refused, and change nothing.
pub async fn bad_selections_are_refused(system: System) -> Checked {
    system.at(0, put("mail", "a")).await?;
    let bad = |what: &'static str| Refusal::BadArgument { what: what.into(), why: String::new() };
    for number in [0, 1_001] {
        refused(system.at(1, Select { count: count(number), ..selects("") }).await, bad("count"));
        refused(
            system.at(1, Act { count: count(number), ..Act::new(filter(""), CANCEL) }).await,
            bad("count"),
        );
    }
    for cursor in ["", "row-", "row--1", "row-4294967295", "[1]", "[\"x\",1,\"\",0]", "nonsense"] {
        let after = Some(Cursor(cursor.to_owned()));
        refused(system.at(1, Select { after: after.clone(), ..selects("") }).await, bad("after"));
        refused(system.at(1, Act { after, ..Act::new(filter(""), CANCEL) }).await, bad("after"));
    }
    let too_many = vec![Term::State(FilterState::Waiting); FILTER_TERMS_MAX + 1];
    let age = |comparison, age| vec![Term::Age(comparison, seconds(age))];
    let args = |keys: usize, value| vec![Term::Args(vec!["k".to_owned(); keys], value)];
    for terms in [
        too_many,
        age(Comparison::Equal, 5),
        age(Comparison::Above, -1),
        args(PATH_KEYS_MAX + 1, PayloadValue::Quoted(String::new())),
        args(1, PayloadValue::Bare("two words".to_owned())),
        args(1, PayloadValue::Bare(String::new())),
        args(1, PayloadValue::Quoted("x".repeat(FILTER_VALUE_BYTES_MAX + 1))),
    ] {
        let filter = Filter { terms };
        refused(system.at(1, Select::new(filter.clone())).await, bad("filter"));
        refused(system.at(1, Act::new(filter, CANCEL)).await, bad("filter"));
    }
    let no_tags = BulkAct::AddTags { tags: Vec::new() };
    refused(system.at(1, Act::new(filter(""), no_tags)).await, bad("tags"));
    let only = (0..1_001).map(|number| jid(format!("j{number}"))).collect();
    refused(system.at(1, Act { only, ..Act::new(filter(""), CANCEL) }).await, bad("only"));
    assert_eq!(found(&system, 2, "state=waiting").await?, ["a"]);
    Ok(())
}
