//! The Lua scripts: what other clients and workers must see as one step.

use crate::layout::scripts;

scripts! {
    /// Creates a job.
    PUT => "../../lua/gearmonkey/head.lua" "../../lua/gearmonkey/put.lua",
    /// Takes jobs.
    TAKE => "../../lua/gearmonkey/head.lua" "../../lua/gearmonkey/take.lua",
    /// Extends a lease, and notes progress.
    HEARTBEAT => "../../lua/gearmonkey/head.lua" "../../lua/gearmonkey/heartbeat.lua",
    /// Ends a job.
    FINISH => "../../lua/gearmonkey/head.lua" "../../lua/gearmonkey/finish.lua",
    /// Queues a job again after a failed attempt.
    RETRY => "../../lua/gearmonkey/head.lua" "../../lua/gearmonkey/retry.lua",
    /// Queues a job again that its worker gives back.
    RELEASE => "../../lua/gearmonkey/head.lua" "../../lua/gearmonkey/release.lua",
    /// Cancels a job.
    CANCEL => "../../lua/gearmonkey/head.lua" "../../lua/gearmonkey/cancel.lua",
    /// Queues a job again on request.
    REQUEUE => "../../lua/gearmonkey/head.lua" "../../lua/gearmonkey/requeue.lua",
    /// Handles expired leases and registrations.
    RECOVER => "../../lua/gearmonkey/head.lua" "../../lua/gearmonkey/recover.lua",
    /// Registers a worker.
    REGISTER => "../../lua/gearmonkey/head.lua" "../../lua/gearmonkey/register.lua",
    /// Takes a worker off the count.
    UNREGISTER => "../../lua/gearmonkey/head.lua" "../../lua/gearmonkey/unregister.lua",
    /// Sets the count of workers.
    SET_COUNT => "../../lua/gearmonkey/head.lua" "../../lua/gearmonkey/set_count.lua",
    /// Takes queued jobs out of work.
    SET_ASIDE => "../../lua/gearmonkey/head.lua" "../../lua/gearmonkey/set_aside.lua",
    /// Removes jobs that are set aside, or puts them back.
    END_SET_ASIDE => "../../lua/gearmonkey/head.lua" "../../lua/gearmonkey/end_set_aside.lua",
}
