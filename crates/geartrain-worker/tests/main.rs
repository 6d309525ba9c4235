//! Integration tests of the worker.

mod handlers;
mod interruption;
mod layers;
mod order;
mod outage;
mod shutdown;
mod support;
