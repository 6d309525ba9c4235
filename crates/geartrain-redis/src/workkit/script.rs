//! The Lua scripts: what other listeners must see as one step.

use std::sync::LazyLock;

/// A script and its SHA-1.
pub(super) struct Script {
    pub(super) text: &'static str,
    sha: LazyLock<String>,
}

impl Script {
    const fn new(text: &'static str, sha: fn() -> String) -> Script {
        Script { text, sha: LazyLock::new(sha) }
    }

    pub(super) fn sha(&self) -> &str {
        &self.sha
    }
}

macro_rules! scripts {
    ($($(#[$doc:meta])* $name:ident => $file:literal,)*) => {
        $(
            $(#[$doc])*
            pub(super) static $name: Script = Script::new(
                include_str!(concat!("../../lua/workkit/", $file)),
                || sha1_smol::Sha1::from(include_str!(concat!("../../lua/workkit/", $file))).hexdigest(),
            );
        )*
    };
}

scripts! {
    /// Inserts a job.
    PUT => "put.lua",
    /// Claims a due run.
    CLAIM => "claim.lua",
    /// Extends a lease.
    HEARTBEAT => "heartbeat.lua",
    /// Ends an attempt for good.
    FINISH => "finish.lua",
    /// Ends an attempt and queues its run again.
    REQUEUE => "requeue.lua",
    /// Ends an attempt whose lease has expired.
    EXPIRE => "expire.lua",
    /// Removes an entry without a job.
    DROP => "drop.lua",
    /// Removes a job.
    CANCEL => "cancel.lua",
    /// Queues a recurring job again that a dead listener had taken.
    ADOPT => "adopt.lua",
    /// Forgets the retries of jobs that are gone.
    SWEEP => "sweep.lua",
}
