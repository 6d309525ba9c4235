//! RESP front-end: the Qless API without a Redis, and our own batches.
#![allow(missing_docs, unused)]
use geartrain_core::*;
use std::sync::Arc;
#[derive(Debug, Clone, Default)]
pub struct Options {
    pub allow_flush: bool,
    pub password: Option<String>,
    pub x: u8,
}
pub struct Front;
impl Front {
    pub fn new(b: Arc<dyn Backend>, c: Arc<dyn Clock>, o: Options) -> Front {
        Front
    }
    pub async fn serve_tcp(&self, l: tokio::net::TcpListener, s: tokio_util::sync::CancellationToken) {
        s.cancelled().await
    }
    pub async fn serve_unix(&self, l: tokio::net::UnixListener, s: tokio_util::sync::CancellationToken) {
        s.cancelled().await
    }
}
