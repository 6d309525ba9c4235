//! What jobs are called: their handle, and where it is not clear which server gave that, the server too.

use geartrain_core::{Jid, Refusal};

use super::error::ServerError;
use super::servers::Servers;

/// What the job is called that a server gave this handle: `H:lap:7`, and with several servers `H:lap:7@10.0.0.1:4730`.
pub(crate) fn jid_of(servers: &Servers, place: usize, handle: &[u8]) -> Result<Jid, ServerError> {
    let server = &servers.get(place).name;
    let nonsense = |why: String| ServerError::Protocol {
        server: server.clone(),
        what: format!("the handle {:?}: {why}", String::from_utf8_lossy(handle)),
    };
    let text = std::str::from_utf8(handle).map_err(|error| nonsense(error.to_string()))?;
    let named = match servers.len() {
        1 => Jid::new(text),
        _ => Jid::new(format!("{text}@{server}")),
    };
    named.map_err(|bad| nonsense(bad.to_string()))
}

/// The server of a job, and the handle that it knows it by. A handle alone is enough if there is one server, and so is the longer form.
pub(crate) fn locate(servers: &Servers, jid: &Jid) -> Result<(usize, String), Refusal> {
    let text = jid.to_string();
    if let Some((handle, server)) = text.rsplit_once('@')
        && let Some(place) = servers.index_of(server)
    {
        return Ok((place, handle.to_owned()));
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
