//! The Lua scripts: what other listeners must see as one step.

use crate::layout::scripts;

scripts! {
    /// Inserts a job.
    PUT => "../../lua/workkit/put.lua",
    /// Claims a due run.
    CLAIM => "../../lua/workkit/claim.lua",
    /// Extends a lease.
    HEARTBEAT => "../../lua/workkit/heartbeat.lua",
    /// Ends an attempt for good.
    FINISH => "../../lua/workkit/finish.lua",
    /// Ends an attempt and queues its run again.
    REQUEUE => "../../lua/workkit/requeue.lua",
    /// Ends an attempt whose lease has expired.
    EXPIRE => "../../lua/workkit/expire.lua",
    /// Removes an entry without a job.
    DROP => "../../lua/workkit/drop.lua",
    /// Removes a job.
    CANCEL => "../../lua/workkit/cancel.lua",
    /// Queues a recurring job again that a dead listener had taken.
    ADOPT => "../../lua/workkit/adopt.lua",
    /// Forgets the retries of jobs that are gone.
    SWEEP => "../../lua/workkit/sweep.lua",
    /// Sets jobs aside.
    SET_ASIDE => "../../lua/workkit/set_aside.lua",
    /// Removes jobs that are set aside, or puts them back.
    END_SET_ASIDE => "../../lua/workkit/end_set_aside.lua",
}
