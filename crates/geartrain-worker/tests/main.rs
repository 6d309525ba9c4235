//! Integration tests of the worker.

mod handlers;
mod interruption;
mod layers;
mod order;
mod shutdown;
mod support;
