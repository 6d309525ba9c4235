//! The HTTP front-end: a [`router`] for axum with the API and the dashboard, and a [`Front`] that serves it
//! (docs/http.md, docs/dashboard.md).
//!
//! Every resource is an operation of `geartrain-json` whose fields come from the path, the query and the body,
//! so that HTTP, JSON over RESP and `--json` say the same. The table in `routes.rs` makes the router and its
//! OpenAPI description.

mod archive;
mod body;
mod dashboard;
mod events;
mod front;
mod guard;
mod handlers;
mod history;
mod idle_writes;
mod login;
mod metrics;
mod openapi;
mod respond;
mod result_log;
mod result_stream;
mod routes;
mod server_info;
mod session;
mod sse;

pub use front::Front;
pub use geartrain_front::AccessControl;
pub use handlers::{LogReader, Options, router};
