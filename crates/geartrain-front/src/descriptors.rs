//! File descriptors: how many the process may have, and how many of them connections may take.

use std::io;

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

/// Descriptors that connections never take: they are for the store (log segments, checkpoints, payload files,
/// backups), the result log, listeners, and connections to a Redis. A server with a data directory, a result
/// log and both ports has about 30 open; opening, checkpoints and backups add a few for a while.
pub const DESCRIPTORS_RESERVED: usize = 128;

/// Taken for the limit where there is none: as many as Linux allows a process by default.
const UNLIMITED: u64 = 1 << 20;

/// Raises the soft limit of descriptors to the hard one, and returns the limit.
///
/// The soft limit is 1,024 nearly everywhere, for programs that use `select`, which cannot deal with more.
pub fn raise_descriptor_limit() -> io::Result<u64> {
    let Rlimit { current, maximum } = getrlimit(Resource::Nofile);
    let wanted = maximum.unwrap_or(UNLIMITED);
    if current.is_none_or(|current| current >= wanted) {
        return Ok(current.unwrap_or(UNLIMITED));
    }
    setrlimit(Resource::Nofile, Rlimit { current: Some(wanted), maximum })?;
    Ok(wanted)
}

/// How many connections there may be under the present limit.
pub(crate) fn connections_max() -> usize {
    let limit = getrlimit(Resource::Nofile).current.unwrap_or(UNLIMITED).min(UNLIMITED);
    connections_under(usize::try_from(limit).unwrap_or(usize::MAX))
}

/// Half of a very low limit is left: a server without connections is of no use.
fn connections_under(limit: usize) -> usize {
    limit - DESCRIPTORS_RESERVED.min(limit / 2)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn connections_take_what_the_store_does_not_need() {
        for (limit, connections) in [(16_000, 15_872), (1_024, 896), (256, 128), (100, 50), (1, 1), (0, 0)] {
            assert_eq!(connections_under(limit), connections, "{limit}");
        }
    }
}
