//! The result log, if the server has one.

use geartrain_json::{LogRequest, OperationError};

use crate::handlers::Shared;
use crate::respond::{self, Reply};

/// Answers from the result log, whose reader blocks on the disk.
pub(crate) async fn read(shared: &Shared, request: LogRequest) -> Result<Reply, OperationError> {
    let Some(read) = shared.options.result_log.clone() else {
        return Err(OperationError {
            help: Some("start the server with --result-log sqlite:FILE".to_owned()),
            ..OperationError::new("no-result-log", "this server writes no result log")
        });
    };
    let document = tokio::task::spawn_blocking(move || read(&request)).await;
    let failed = |_| OperationError::new("unavailable", "the result log cannot be read");
    Ok(respond::json(document.map_err(failed)??))
}
