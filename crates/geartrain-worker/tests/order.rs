//! The order in which a worker serves several queues: the examples of the Qless documentation.

use std::sync::Arc;

use geartrain_core::Put;
use geartrain_worker::{Context, Order, Worker};
use parking_lot::Mutex;

use crate::support::{memory, put, run};

/// Works off queues x with three jobs and y with one, one job at a time.
async fn order_of(order: Order) -> String {
    let backend = memory();
    for (queue, jid, priority) in [("x", "a", 0.0), ("x", "b", 0.0), ("x", "c", -1.0), ("y", "d", 5.0)] {
        let priority = geartrain_core::Priority::new(priority).ok();
        run(&backend, Put { priority, ..put(queue, jid, "k", "") }).await;
    }
    let seen = Arc::new(Mutex::new(Vec::new()));
    let log = seen.clone();
    Worker::new(backend)
        .queues(["x", "y"])
        .order(order)
        .on_klass("k", move |_, _, cx: Context| {
            log.lock().push(cx.queue().to_string());
            std::future::ready(Ok(""))
        })
        .concurrency(1)
        .drain(true)
        .run_until(std::future::pending::<()>())
        .await
        .unwrap();
    Arc::into_inner(seen).expect("the worker is gone").into_inner().join(" ")
}

#[tokio::test]
async fn ordered_empties_the_first_queue_first() {
    assert_eq!(order_of(Order::Strict).await, "x x x y");
}

#[tokio::test]
async fn round_robin_takes_turns() {
    assert_eq!(order_of(Order::RoundRobin).await, "x y x x");
}

#[tokio::test]
async fn by_priority_takes_the_highest_of_all_queues() {
    assert_eq!(order_of(Order::Priority).await, "y x x x");
}
