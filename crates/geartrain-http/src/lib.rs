//! The HTTP front-end: a [`router`] for axum, and a [`Front`] that serves it (docs/http.md).
//!
//! Every resource is an operation of `geartrain-json` whose fields come from the path, the query and the body,
//! so that HTTP, JSON over RESP and `--json` say the same. The table in `routes.rs` makes the router and its
//! OpenAPI description.

mod body;
mod events;
mod front;
mod guard;
mod handlers;
mod metrics;
mod openapi;
mod respond;
mod result_stream;
mod routes;
mod sse;

pub use front::Front;
pub use handlers::{Options, router};
