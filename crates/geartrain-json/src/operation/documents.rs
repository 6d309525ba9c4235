//! The schemas of the documents of operations, generated from the views that write them.

use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};

use super::OperationInfo;
use super::jobs::{PageView, TrackedView};
use crate::reply::{
    AnnounceView, CancelView, ChunkView, CompleteView, DependencyView, FailView, FailureGroupView,
    ForgetView, HeartbeatView, JidView, JidsView, PauseView, PriorityView, ProgressReplyView, PutView,
    RequeueView, RetryView, RollCallView, RunView, TagsView, TrackView, UnfailView, UnrecurView,
    WorkerLostView,
};
use crate::select::{BulkView, PreviewView};
use crate::{
    JobView, LimitsView, OptionView, PeriodicView, PoppedView, PublishedView, QueueView, RecurringView,
    StatsView, StatusView, StoredResultView, TombstoneView, WhyQueueView, WhyView, WorkerView,
};

impl OperationInfo {
    /// The schema of its document; `None` for an operation without one, which a test refuses. Definitions that it
    /// refers to are added to the generator.
    pub fn document_schema(&self, generator: &mut SchemaGenerator) -> Option<Schema> {
        let mut documents = Documents(generator);
        Some(match self.name {
            "put" | "recur" => documents.of::<PutView>(),
            "pop" | "relock" => documents.of::<Vec<PoppedView>>(),
            "peek" => documents.of::<Vec<JobView>>(),
            "heartbeat" => documents.of::<HeartbeatView>(),
            "progress" => documents.of::<ProgressReplyView>(),
            "chunk" => documents.of::<ChunkView>(),
            "complete" => documents.of::<CompleteView>(),
            "fail" => documents.of::<FailView>(),
            "retry" => documents.of::<RetryView>(),
            "release" | "log" => documents.of::<JidView>(),
            "timeout" => documents.of::<JidsView>(),
            "get" => documents.of::<JobView>(),
            "canceled" => documents.of::<TombstoneView>(),
            "jobs" => documents.of::<PageView>(),
            "tracked" => documents.of::<TrackedView>(),
            "status" => documents.of::<StatusView>(),
            "why" => documents.any([Documents::of::<WhyView>, Documents::of::<WhyQueueView>]),
            "result" => documents.of::<StoredResultView>(),
            "events" => documents.of::<Vec<PublishedView>>(),
            "cancel" => documents.one_or_many::<CancelView>(),
            "requeue" => documents.one_or_many::<RequeueView>(),
            "priority" => documents.one_or_many::<PriorityView>(),
            "tag" | "untag" => documents.one_or_many::<TagsView>(),
            "unfail" => documents.one_or_many::<UnfailView>(),
            "track" | "untrack" => documents.of::<TrackView>(),
            "depend" | "undepend" => documents.of::<DependencyView>(),
            "queues" => documents.of::<Vec<QueueView>>(),
            "stats" => documents.of::<StatsView>(),
            "limits" => documents.of::<LimitsView>(),
            "pause" | "resume" => documents.of::<PauseView>(),
            "forget" => documents.of::<ForgetView>(),
            "failed" => {
                documents.any([Documents::of::<Vec<FailureGroupView>>, Documents::of::<Vec<JobView>>])
            }
            "workers" => documents.any([Documents::of::<Vec<WorkerView>>, Documents::of::<Vec<JobView>>]),
            "roll-call" => documents.of::<RollCallView>(),
            "announce" => documents.of::<AnnounceView>(),
            "worker-lost" => documents.of::<WorkerLostView>(),
            "recurring" => {
                let one = documents.any([Documents::of::<PeriodicView>, Documents::of::<RecurringView>]);
                json_schema!({ "anyOf": [one, { "type": "array", "items": one }] })
            }
            "recur-pause" | "recur-resume" => documents.of::<PeriodicView>(),
            "recur-edit" => documents.any([Documents::of::<PeriodicView>, Documents::of::<RecurringView>]),
            "recur-run" => documents.of::<RunView>(),
            "unrecur" => documents.of::<UnrecurView>(),
            "config" => documents.any([Documents::of::<OptionView>, Documents::of::<Vec<OptionView>>]),
            "set-config" | "unset-config" => documents.of::<OptionView>(),
            _ => return None,
        })
    }
}

struct Documents<'a>(&'a mut SchemaGenerator);

impl Documents<'_> {
    fn of<T: JsonSchema>(&mut self) -> Schema {
        self.0.subschema_for::<T>()
    }

    fn any<const N: usize>(&mut self, of: [fn(&mut Self) -> Schema; N]) -> Schema {
        let schemas: Vec<Schema> = of.into_iter().map(|of| of(self)).collect();
        json_schema!({ "anyOf": schemas })
    }

    /// One job, or all that a filter selects.
    fn one_or_many<T: JsonSchema>(&mut self) -> Schema {
        self.any([Documents::of::<T>, Documents::of::<BulkView>, Documents::of::<PreviewView>])
    }
}
