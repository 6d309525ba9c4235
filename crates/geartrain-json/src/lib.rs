//! The JSON documents: one set for `--json`, HTTP and JSON over RESP (docs/formats/json.md).
//!
//! - Views of replies: [`JobView`], [`QueueView`], [`PublishedView`] … Every key is always present, `null` if
//!   it has no value. Times are seconds since the epoch, durations are seconds.
//! - [`Object`]: a strict reader of JSON objects, and [`put`], the put that one describes.
//! - [`Request`]: operations such as `{"put": {…}}`, from the table of [`operations`], and [`Queue`], which
//!   executes them.
//! - [`OperationError`]: a stable code, a sentence, and what to do.
//! - Texts as people write them: [`duration`], [`backoff`], [`rate`], [`time`].

pub mod backoff;
mod canceled;
mod details;
pub mod duration;
mod error;
mod event;
mod job;
mod log;
mod number;
mod object;
mod operation;
mod option;
pub mod payload;
pub mod put;
mod queue;
pub mod rate;
mod recurring;
mod reply;
mod result;
mod select;
mod setting;
pub mod time;
mod why;
mod worker;

pub use canceled::TombstoneView;
pub use details::ProgressView;
pub use error::{OperationError, help};
pub use event::{PublishedView, milestone};
pub use job::{JobView, PoppedView, is_stalled};
pub use log::{AttemptView, GapView, LOG_FIELDS, LogQuery, LogRequest, LogSizeView, LogView};
pub use number::{Number, texts};
pub use object::{Object, excerpt, syntax_error};
pub use operation::{
    BATCH_MAX, Document, FieldInfo, FieldKind, Need, OperationInfo, Outcome, Plan, Queue, Reach, Request,
    Sleep, last_queue, object_schema, operations, option_keys, random_stream,
};
pub use option::{MAX_CONCURRENCY, OptionView, queue_option, spellings};
pub use queue::{LimitsView, QueueView, StatsView, SummaryView};
pub use recurring::{
    PeriodicView, RETRIES_DEFAULT, RecurringView, backlog_number, fields_of, interval, key_text,
    overlap_text, zone_of,
};
pub use result::{EndedView, StatusView, StoredResultView};
pub use select::{BulkSum, BulkView, PreviewView, SelectedView, not_json};
pub use setting::{SettingOrigin, SettingView};
pub use why::{WhyQueueView, WhyView, is_stalled as why_stalled};
pub use worker::{CapabilityView, WorkerView};
