//! The in-memory store passes the conformance suite.

use std::sync::Arc;

use geartrain_store::StoreBackend;

geartrain_testkit::conformance!(|clock| Arc::new(
    StoreBackend::in_memory(clock).expect("a thread can be started")
));
