//! The Lua scripts: what other workers must see as one step.

use crate::layout::scripts;

scripts! {
    /// Adds tasks.
    ENQUEUE => "../../lua/worqr/types.lua" "../../lua/worqr/enqueue.lua",
    /// Adds a task unless an equal one is unfinished.
    ENQUEUE_UNIQUE => "../../lua/worqr/types.lua" "../../lua/worqr/enqueue_unique.lua",
    /// Registers a worker.
    START_WORKER => "../../lua/worqr/types.lua" "../../lua/worqr/start_worker.lua",
    /// Registers a worker's work on a queue.
    START_WORK => "../../lua/worqr/types.lua" "../../lua/worqr/start_work.lua",
    /// Takes tasks.
    TAKE => "../../lua/worqr/types.lua" "../../lua/worqr/take.lua",
    /// Finishes a task.
    FINISH => "../../lua/worqr/types.lua" "../../lua/worqr/finish.lua",
    /// Returns a task to its queue.
    GIVE_BACK => "../../lua/worqr/types.lua" "../../lua/worqr/give_back.lua",
    /// Returns a task to its queue, or finishes it without a retry left.
    RETRY => "../../lua/worqr/types.lua" "../../lua/worqr/retry.lua",
    /// Removes all equal tasks.
    CANCEL => "../../lua/worqr/types.lua" "../../lua/worqr/cancel.lua",
    /// Returns the tasks of a worker and removes it.
    FAIL_WORKER => "../../lua/worqr/types.lua" "../../lua/worqr/fail_worker.lua",
    /// Lists the workers.
    SURVEY => "../../lua/worqr/types.lua" "../../lua/worqr/survey.lua",
    /// Takes waiting tasks out of their queue.
    SET_ASIDE => "../../lua/worqr/types.lua" "../../lua/worqr/set_aside.lua",
    /// Removes tasks that are set aside, or returns them to their queue.
    END_SET_ASIDE => "../../lua/worqr/types.lua" "../../lua/worqr/end_set_aside.lua",
}
