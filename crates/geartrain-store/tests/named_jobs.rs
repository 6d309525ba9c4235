//! The in-memory store passes the cases for backends that name jobs.

use std::sync::Arc;

use geartrain_core::SystemClock;
use geartrain_store::StoreBackend;
use geartrain_testkit::named_jobs::System;

geartrain_testkit::named_jobs!(|| {
    let backend = StoreBackend::in_memory(Arc::new(SystemClock)).expect("a thread can be started");
    let payload = |text: &str| text.to_owned();
    System { backend: Arc::new(backend), klass: Some("k"), payload, lacks: &[], server: Box::new(()) }
});
