//! The cases for backends that name jobs, on all layouts of a Redis. Each case has a Redis of its own.

use std::sync::Arc;

use geartrain_redis::RedisBackend;
use geartrain_redis::gearmonkey::GearMonkeyBackend;
use geartrain_redis::workkit::WorkKitBackend;
use geartrain_redis::worqr::WorqrBackend;
use geartrain_testkit::named_jobs::Feature::*;
use geartrain_testkit::named_jobs::System;
use geartrain_testkit::peers::RedisServer;
use pollster::block_on;

fn text(text: &str) -> String {
    text.to_owned()
}

mod native {
    use super::*;

    geartrain_testkit::named_jobs!(|| {
        let redis = RedisServer::start(&[]);
        let backend = block_on(RedisBackend::connect(redis.url().parse().unwrap())).unwrap();
        let (backend, server) = (Arc::new(backend), Box::new(redis));
        System { backend, klass: Some("k"), payload: text, lacks: &[], server }
    });
}

mod gearmonkey {
    use super::*;

    geartrain_testkit::named_jobs!(|| {
        let redis = RedisServer::start(&[]);
        let url = format!("gearmonkey+{}", redis.url());
        let backend = block_on(GearMonkeyBackend::connect(url.parse().unwrap())).unwrap();
        System {
            backend: Arc::new(backend),
            klass: None,
            payload: text,
            lacks: &[
                (
                    Klasses,
                    "bad-argument",
                    "klass must be mail, as the queue is: to GearMonkey a job's function is all there is",
                ),
                (Tags, "unsupported", "the gearmonkey backend cannot tag a job"),
                (Dependencies, "unsupported", "the gearmonkey backend cannot make a job depend on others"),
                (UniqueKeys, "unsupported", "the gearmonkey backend cannot take a unique key"),
                (Recurring, "unsupported", "the gearmonkey backend cannot run a job again and again"),
                (Pauses, "unsupported", "the gearmonkey backend cannot pause a function"),
                (
                    LostWorkers,
                    "unsupported",
                    "the gearmonkey backend cannot mark a worker as lost: its leases expire",
                ),
                (
                    EventsAfter,
                    "unsupported",
                    "the gearmonkey backend cannot store events: only those from now on are seen",
                ),
                (Filters, "unsupported", "the gearmonkey backend cannot select jobs by a filter"),
            ],
            server: Box::new(redis),
        }
    });
}

mod worqr {
    use super::*;

    geartrain_testkit::named_jobs!(|| {
        let redis = RedisServer::start(&[]);
        let url = format!("worqr+{}?timer=60", redis.url());
        let backend = block_on(WorqrBackend::connect(url.parse().unwrap())).unwrap();
        System {
            backend: Arc::new(backend),
            klass: None,
            payload: text,
            lacks: &[
                (Jids, "", ""),
                (
                    Klasses,
                    "bad-argument",
                    "klass must be mail, as the queue is: a task of Worqr has no other kind",
                ),
                (Priorities, "unsupported", "the worqr backend cannot order tasks by priority"),
                (Delays, "unsupported", "the worqr backend cannot delay a task"),
                (
                    RetryDelays,
                    "unsupported",
                    "the worqr backend cannot delay a retry: its worker pauses instead",
                ),
                (
                    Retries,
                    "unsupported",
                    "the worqr backend cannot keep retries with a task: they are an option of the URL",
                ),
                (Tags, "unsupported", "the worqr backend cannot tag a task"),
                (Dependencies, "unsupported", "the worqr backend cannot make a task depend on others"),
                (
                    UniqueKeys,
                    "bad-argument",
                    "unique key must be the payload itself: Worqr compares whole tasks",
                ),
                (Recurring, "unsupported", "the worqr backend cannot keep recurring jobs"),
                (Pauses, "unsupported", "the worqr backend cannot pause a queue"),
                (
                    Cancel,
                    "unsupported",
                    "the worqr backend cannot cancel a job by its id: cancel all equal tasks by queue and payload",
                ),
                (Progress, "unsupported", "the worqr backend cannot report progress"),
                (Results, "unsupported", "the worqr backend cannot keep a result"),
                (EventsAfter, "unsupported", "the worqr backend cannot keep events: they are only published"),
                (Filters, "unsupported", "the worqr backend cannot select jobs by a filter"),
            ],
            server: Box::new(redis),
        }
    });
}

mod workkit {
    use super::*;

    geartrain_testkit::named_jobs!(|| {
        let redis = RedisServer::start(&[]);
        let url = format!("workkit+{}?all=true", redis.url());
        let backend = block_on(WorkKitBackend::connect(url.parse().unwrap())).unwrap();
        System {
            backend: Arc::new(backend),
            klass: Some("a/b"),
            payload: |text| format!("[\"{text}\"]"),
            lacks: &[
                (Bytes, "bad-argument", "payload must be JSON: expected value at line 1 column 1"),
                (
                    Priorities,
                    "unsupported",
                    "the workkit backend cannot order jobs by priority: use several schedules",
                ),
                (Tags, "unsupported", "the workkit backend cannot tag a job"),
                (Dependencies, "unsupported", "the workkit backend cannot make a job depend on others"),
                (
                    UniqueKeys,
                    "unsupported",
                    "the workkit backend cannot take a unique key: equal jobs of one second are one job",
                ),
                (
                    Recurring,
                    "unsupported",
                    "the workkit backend cannot run a job at an interval: use a cron expression",
                ),
                (Pauses, "unsupported", "the workkit backend cannot pause a schedule"),
                (Progress, "unsupported", "the workkit backend cannot report progress"),
                (Results, "unsupported", "the workkit backend cannot keep a result"),
                (Waits, "unsupported", "the workkit backend cannot wait for a result"),
                (
                    LostWorkers,
                    "unsupported",
                    "the workkit backend cannot mark a worker as lost: its leases expire",
                ),
                (EventsAfter, "unsupported", "the workkit backend cannot publish events"),
                (Filters, "unsupported", "the workkit backend cannot select jobs by a filter"),
            ],
            server: Box::new(redis),
        }
    });
}
