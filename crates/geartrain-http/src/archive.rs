//! The backup as a download: a tar archive, in the pace at which the client reads it.

use std::sync::Arc;

use axum::body::Body;
use axum::http::{HeaderValue, StatusCode, header};
use bytes::Bytes;
use futures_util::stream;
use geartrain_core::{Backend, Backup, BackupStep, BackupTarget};
use geartrain_json::OperationError;

use crate::guard::Access;
use crate::handlers::Shared;
use crate::respond::{self, Reply};

/// Begins a backup of the backend, as the caller may use it. It is cancelled if the client goes away or loses its
/// access; a client that gets no end of the body has no backup.
pub(crate) async fn download(
    shared: &Shared,
    backend: &Arc<dyn Backend>,
    access: &Access,
) -> Result<Reply, OperationError> {
    let backup = backend.backup(BackupTarget::Archive).await?;
    let state = (backup, shared.stop.clone(), access.revoked.clone());
    let chunks = stream::unfold(Some(state), |state| async move {
        let (mut backup, stop, revoked) = state?;
        let chunk = tokio::select! {
            chunk = next_chunk(&mut *backup) => chunk,
            () = stop.cancelled() => Err(std::io::Error::other("the server is stopping")),
            () = revoked.cancelled() => Err(std::io::Error::other("the access has ended")),
        };
        match chunk {
            Ok(None) => None,
            Ok(Some(chunk)) => Some((Ok(chunk), Some((backup, stop, revoked)))),
            Err(error) => {
                tracing::warn!(%error, "a backup over HTTP is not complete");
                Some((Err(error), None))
            }
        }
    });
    let mut reply = respond::with_type(StatusCode::OK, "application/x-tar", Body::from_stream(chunks));
    let name = HeaderValue::from_static("attachment; filename=\"geartrain-backup.tar\"");
    reply.headers_mut().insert(header::CONTENT_DISPOSITION, name);
    Ok(reply)
}

/// The next bytes of the archive; none at its end.
async fn next_chunk(backup: &mut dyn Backup) -> std::io::Result<Option<Bytes>> {
    loop {
        match backup.next().await.map_err(std::io::Error::other)? {
            BackupStep::Chunk(bytes) => return Ok(Some(bytes.into())),
            BackupStep::Done(_) => return Ok(None),
            _ => {}
        }
    }
}
