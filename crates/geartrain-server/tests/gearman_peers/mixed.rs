//! Clients and workers of different libraries, and our own clients and workers.

use std::time::Duration;

use geartrain::{
    Complete, Count, Holder, Jid, JobResult, Jobs, Listing, Page, QueueName, Reason, StateName, Why,
};
use serde_json::json;

use crate::gearman_peers::program::{Geartrain, Library};
use crate::gearman_peers::tools;

const WAIT: Duration = Duration::from_secs(30);

#[test]
fn debians_client_works_with_workers_of_every_library() {
    for library in [Library::Gear, Library::Python3Gearman, Library::Gearmanode] {
        let geartrain = Geartrain::start();
        let _worker = library.worker(geartrain.port(), &["reverse", "steps", "fail", "raise"]);
        let client = |arguments: &[&str]| tools::client(geartrain.port(), arguments, b"");
        assert_eq!(client(&["-f", "reverse", "abc"]).text(), "cba", "{library:?}");
        // The tool prints data and result in sequence, warnings to stderr, and the progress at the end.
        let output = client(&["-f", "steps", "x"]);
        assert_eq!(
            (output.code, output.text()),
            (Some(0), "onetwodone50% Complete\n"),
            "{library:?}: {output:?}"
        );
        assert!(output.complaints.contains("careful"), "{library:?}: {output:?}");
        for function in ["fail", "raise"] {
            let output = client(&["-f", function, "x"]);
            assert_eq!((output.code, &*output.complaints), (Some(1), "Job failed\n"), "{library:?}");
        }
    }
}

#[test]
fn clients_of_every_library_work_with_debians_worker() {
    for library in [Library::Gear, Library::Python3Gearman, Library::Gearmanode] {
        let geartrain = Geartrain::start();
        let _worker = tools::worker(geartrain.port(), &["-f", "rev"], &["rev"]);
        let ended = library.client(geartrain.port()).run(&json!({"submit": "rev", "data": "abc"}));
        assert_eq!(ended["result"], "cba", "{library:?}");
    }
}

#[test]
fn python_and_node_work_for_each_other() {
    use Library::{Gear, Gearmanode, Python3Gearman};
    for (of_client, of_worker) in
        [(Gear, Gearmanode), (Python3Gearman, Gearmanode), (Gearmanode, Gear), (Gear, Python3Gearman)]
    {
        let geartrain = Geartrain::start();
        let _worker = of_worker.worker(geartrain.port(), &["steps"]);
        let ended = of_client.client(geartrain.port()).run(&json!({"submit": "steps", "data": "x"}));
        let expected = json!({
            "ended": "complete", "result": "done",
            "data": ["one", "two"], "warnings": ["careful"], "progress": [[1, 2]],
        });
        assert_eq!(ended, expected, "{of_client:?} {of_worker:?}");
    }
}

/// Workers and clients for Node receive every byte. Only the results of its workers are text.
#[test]
fn node_receives_every_byte() {
    let geartrain = Geartrain::start();
    let bytes: String = (0..=0xff).rev().map(char::from).collect();
    let job = |function: &str| json!({"submit": function, "data": bytes});
    let _worker = Library::Gear.worker(geartrain.port(), &["echo"]);
    let ended = Library::Gearmanode.client(geartrain.port()).run(&job("echo"));
    assert_eq!(ended["result"], *bytes);
    let mut worker = Library::Gearmanode.worker(geartrain.port(), &["hold"]);
    Library::Gear.client(geartrain.port()).submit_background(job("hold"));
    assert_eq!(worker.took(), bytes.chars().take(100).collect::<String>());
}

#[test]
fn our_worker_runs_the_job_of_a_gearman_client() {
    let geartrain = Geartrain::start();
    let ours = geartrain.client();
    let mut client = Library::Gear.client(geartrain.port());
    let handle = client.created(&json!({"submit": "mail", "data": "to\0whom"}));
    geartrain.runtime.block_on(async {
        let job = ours.pop_wait("mail", "ours", WAIT).await.unwrap().expect("there is a job");
        assert_eq!((job.jid.to_string(), job.klass.as_str()), (handle, "mail"));
        assert_eq!(job.payload.bytes(), b"to\0whom");
        let holder = Holder::Token(job.lock.token);
        let result = JobResult { code: 0, bytes: (&b"sent"[..]).into() };
        let complete = Complete { result: Some(Box::new(result)), ..Complete::new(job.jid, holder) };
        ours.run(complete).await.unwrap();
    });
    assert_eq!(client.read_json()["result"], "sent");
}

#[test]
fn a_gearman_worker_runs_our_job() {
    let geartrain = Geartrain::start();
    let ours = geartrain.client();
    let mut worker = Library::Gearmanode.worker(geartrain.port(), &["reverse", "raise"]);
    let ended = geartrain.runtime.block_on(ours.put_and_wait(ours.put("reverse", "any", "abc"), Some(WAIT)));
    let ended = ended.unwrap();
    assert_eq!((ended.is_completed(), ended.result.bytes.bytes()), (true, &b"cba"[..]));
    assert_eq!(worker.took(), "abc");
    let ended = geartrain.runtime.block_on(ours.put_and_wait(ours.put("raise", "any", "oops"), Some(WAIT)));
    let ended = ended.unwrap();
    assert_eq!((ended.is_completed(), ended.result.bytes.bytes()), (false, &b"oops"[..]));
}

/// A handle is a jid, and a function is a queue: our commands show Gearman jobs too.
#[test]
fn gearman_jobs_are_visible_to_our_commands() {
    let geartrain = Geartrain::start();
    let ours = geartrain.client();
    let mut client = Library::Gear.client(geartrain.port());
    let handle = client.submit_background(json!({"submit": "hold", "data": "slow", "priority": "high"}));
    let (jid, queue) = (Jid::new(&*handle).unwrap(), QueueName::new("hold").unwrap());
    let why = |jid: &Jid| geartrain.runtime.block_on(ours.run(Why { jid: jid.clone() })).unwrap();
    let list = |which: Listing| {
        let page = Page { offset: 0, count: Count::MAX };
        geartrain.runtime.block_on(ours.run(Jobs { which, page })).unwrap()
    };
    assert_eq!(list(Listing::Waiting(queue.clone())), std::slice::from_ref(&jid));
    assert_eq!(why(&jid).state, StateName::Waiting);
    let counts = geartrain.runtime.block_on(ours.queues()).unwrap();
    assert_eq!(counts.iter().map(|it| (it.name.as_str(), it.waiting)).collect::<Vec<_>>(), [("hold", 1)]);
    let mut worker = Library::Gear.worker(geartrain.port(), &["hold"]);
    assert_eq!(worker.took(), "slow");
    assert_eq!(list(Listing::Running(queue)), std::slice::from_ref(&jid));
    let reasons = why(&jid).reasons;
    let [Reason::Running { worker: holder, .. }] = &reasons[..] else { panic!("{reasons:?}") };
    assert!(holder.as_str().starts_with("gearman-"), "{holder}");
    // Cancelled with our command, it is removed for Gearman too.
    assert!(geartrain.runtime.block_on(ours.cancel(&jid)).unwrap());
    let status = client.answer(&json!({"status": handle}));
    assert_eq!(status, json!({"known": false, "running": false, "progress": [0, 0]}));
}
