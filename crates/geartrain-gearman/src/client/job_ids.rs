//! Jids of Gearman jobs: the handle, followed by `@HOST:PORT` if there are several servers.

use geartrain_core::{Jid, Refusal};

use super::error::ServerError;
use super::servers::Servers;

/// The jid for a server's handle: `H:lap:7`, or with several servers `H:lap:7@10.0.0.1:4730`.
pub(crate) fn jid_of(servers: &Servers, index: usize, handle: &[u8]) -> Result<Jid, ServerError> {
    let server = &servers.get(index).name;
    let protocol_error = |why: String| ServerError::Protocol {
        server: server.clone(),
        detail: format!("the handle {:?}: {why}", String::from_utf8_lossy(handle)),
    };
    let text = std::str::from_utf8(handle).map_err(|error| protocol_error(error.to_string()))?;
    let jid = match servers.len() {
        1 => Jid::new(text),
        _ => Jid::new(format!("{text}@{server}")),
    };
    jid.map_err(|bad| protocol_error(bad.to_string()))
}

/// The server of a job and its handle there. With a single server, the handle alone and the long form are
/// both accepted.
pub(crate) fn locate(servers: &Servers, jid: &Jid) -> Result<(usize, String), Refusal> {
    let text = jid.to_string();
    if let Some((handle, server)) = text.rsplit_once('@')
        && let Some(index) = servers.index_of(server)
    {
        return Ok((index, handle.to_owned()));
    }
    if servers.len() == 1 {
        return Ok((0, text));
    }
    let names: Vec<&str> = servers.iter().map(|server| server.name.as_str()).collect();
    Err(Refusal::BadArgument {
        what: "jid".into(),
        why: format!(
            "must say which server has the job, as in HANDLE@{}; {text} does not",
            names.join(" or @")
        ),
    })
}
