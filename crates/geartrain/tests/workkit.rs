//! WorkKit schedules in their own words.

use std::sync::{Arc, Mutex};

use geartrain::workkit::Schedule;
use geartrain::{Clock, Context, JobError, Payload, State, SystemClock};
use geartrain_testkit::peers::RedisServer;

#[tokio::test]
async fn a_schedule_takes_jobs_by_time_and_a_listener_runs_those_it_knows() {
    let redis = RedisServer::start(&[]);
    let url = format!("workkit+{}", redis.url());
    let tasks = Schedule::create(&url, "app-tasks").await.unwrap();
    let now = SystemClock.now();

    // Equal jobs are one, unless the second ends between the two.
    let first = tasks.add_now("cache/clear", &("users", 7)).await.unwrap();
    let second = tasks.add_now("cache/clear", &("users", 7)).await.unwrap();
    assert!(first.is_new);
    assert_eq!(second.is_new, second.jid != first.jid);
    let unknown = tasks.add_now("cache/fill", &()).await.unwrap();
    let later = tasks.add_in("5 minutes", "cache/clear", &()).await.unwrap();
    assert!(later.first >= now + geartrain::Seconds::from(300));
    let yearly = tasks.add_at("every year on 25 december at noon", "cache/clear", &[1]).await.unwrap();
    assert!(yearly.is_new && yearly.first > now);
    assert!(!tasks.add_at("* 12 25 * 12 0 0", "cache/clear", &[1]).await.unwrap().is_new);
    // The cron string is part of the id, so it stays as it was written.
    let written = tasks.add_at("* 3 * 0/2,3 9-17 * */5", "clojure.core/println", &["Beep!"]).await.unwrap();
    assert_eq!(written.jid.to_string(), "9fc031511e8990167ac25d063ba3bd6ba643922f");

    for (when, function, expected) in [
        ("7pm tomorow", "a/b", "time \"tomorow\" at byte 4"),
        ("every day at 9am Europe/Berlin", "a/b", "the workkit backend cannot run a job in a time zone"),
        ("tomorrow", "clear", "klass must name a function"),
    ] {
        let error = tasks.add_at(when, function, &()).await.unwrap_err().to_string();
        assert!(error.starts_with(expected), "{error}");
    }
    let error = tasks.add_now("a/b", &7).await.unwrap_err().to_string();
    assert_eq!(error, "payload must be a JSON array, the arguments of the function");
    let error = Schedule::create("redis://h", "s").await.unwrap_err().to_string();
    assert!(error.ends_with("write it as workkit+redis://HOST:PORT"), "{error}");

    let ran = Arc::new(Mutex::new(Vec::new()));
    let report = tasks
        .listen()
        .with_state(ran.clone())
        .on_klass(
            "cache/clear",
            async |args: Payload, State(ran): State<Arc<Mutex<Vec<String>>>>, _: Context| {
                ran.lock().unwrap().push(args.text().unwrap().to_owned());
                Ok::<_, JobError>("")
            },
        )
        .drain(true)
        .run_until(std::future::pending::<()>())
        .await
        .unwrap();
    assert_eq!(report.completed, 1 + u64::from(second.is_new));
    assert!(ran.lock().unwrap().iter().all(|args| args == r#"["users",7]"#));

    let client = tasks.client();
    assert!(client.get(&first.jid).await.unwrap().is_none());
    assert!(client.get(&unknown.jid).await.unwrap().is_some(), "no handler knows it");
    assert!(client.get(&later.jid).await.unwrap().is_some());
}
