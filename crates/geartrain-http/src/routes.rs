//! The routes: a table of methods, paths and operations. Parameters of paths are fields of the operation.

use geartrain_json::{FieldInfo, FieldKind, OperationInfo};

/// A route, and what answers it.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Route {
    pub(crate) method: &'static str,
    /// In axum's form: `/v1/jobs/{jid}`.
    pub(crate) path: &'static str,
    pub(crate) endpoint: Endpoint,
}

#[derive(Debug, Clone, Copy)]
pub(crate) enum Endpoint {
    /// An operation, by its name.
    Operation(&'static str),
    /// Operations in the body.
    Batch,
    /// Events, as SSE or as a list.
    Events,
    /// The result stream of a job, as SSE.
    ResultStream,
    Metrics,
    OpenApi,
    /// The process answers.
    Health,
    /// The queue answers.
    Ready,
}

const fn operation(method: &'static str, path: &'static str, name: &'static str) -> Route {
    Route { method, path, endpoint: Endpoint::Operation(name) }
}

const fn get(path: &'static str, endpoint: Endpoint) -> Route {
    Route { method: "GET", path, endpoint }
}

pub(crate) const ROUTES: &[Route] = &[
    operation("GET", "/v1/jobs", "jobs"),
    operation("POST", "/v1/jobs", "put"),
    operation("GET", "/v1/jobs/{jid}", "get"),
    operation("DELETE", "/v1/jobs/{jid}", "cancel"),
    operation("GET", "/v1/jobs/{jid}/canceled", "canceled"),
    operation("GET", "/v1/jobs/{jid}/status", "status"),
    operation("GET", "/v1/jobs/{jid}/why", "why"),
    operation("GET", "/v1/jobs/{jid}/result", "result"),
    get("/v1/jobs/{jid}/stream", Endpoint::ResultStream),
    operation("POST", "/v1/jobs/{jid}/heartbeat", "heartbeat"),
    operation("POST", "/v1/jobs/{jid}/progress", "progress"),
    operation("POST", "/v1/jobs/{jid}/chunk", "chunk"),
    operation("POST", "/v1/jobs/{jid}/complete", "complete"),
    operation("POST", "/v1/jobs/{jid}/fail", "fail"),
    operation("POST", "/v1/jobs/{jid}/retry", "retry"),
    operation("POST", "/v1/jobs/{jid}/release", "release"),
    operation("POST", "/v1/jobs/{jid}/timeout", "timeout"),
    operation("POST", "/v1/jobs/{jid}/requeue", "requeue"),
    operation("POST", "/v1/jobs/{jid}/priority", "priority"),
    operation("POST", "/v1/jobs/{jid}/tag", "tag"),
    operation("POST", "/v1/jobs/{jid}/untag", "untag"),
    operation("POST", "/v1/jobs/{jid}/track", "track"),
    operation("POST", "/v1/jobs/{jid}/untrack", "untrack"),
    operation("POST", "/v1/jobs/{jid}/depend", "depend"),
    operation("POST", "/v1/jobs/{jid}/undepend", "undepend"),
    operation("POST", "/v1/jobs/{jid}/log", "log"),
    operation("GET", "/v1/tracked", "tracked"),
    operation("POST", "/v1/pop", "pop"),
    operation("POST", "/v1/bulk/cancel", "cancel"),
    operation("POST", "/v1/bulk/requeue", "requeue"),
    operation("POST", "/v1/bulk/unfail", "unfail"),
    operation("POST", "/v1/bulk/priority", "priority"),
    operation("POST", "/v1/bulk/tag", "tag"),
    operation("POST", "/v1/bulk/untag", "untag"),
    Route { method: "POST", path: "/v1/batch", endpoint: Endpoint::Batch },
    operation("GET", "/v1/queues", "queues"),
    operation("GET", "/v1/queues/{queue}", "queues"),
    operation("DELETE", "/v1/queues/{queue}", "forget"),
    operation("POST", "/v1/queues/{queue}/jobs", "put"),
    operation("POST", "/v1/queues/{queue}/pop", "pop"),
    operation("GET", "/v1/queues/{queue}/peek", "peek"),
    operation("GET", "/v1/queues/{queue}/stats", "stats"),
    operation("GET", "/v1/queues/{queue}/why", "why"),
    operation("GET", "/v1/queues/{queue}/status", "status"),
    operation("GET", "/v1/queues/{queue}/limits", "limits"),
    operation("PUT", "/v1/queues/{queue}/limits", "limits"),
    operation("GET", "/v1/queues/{queue}/roll-call", "roll-call"),
    operation("POST", "/v1/queues/{queue}/pause", "pause"),
    operation("POST", "/v1/queues/{queue}/resume", "resume"),
    operation("GET", "/v1/failures", "failed"),
    operation("GET", "/v1/failures/{group}", "failed"),
    operation("POST", "/v1/failures/{group}/unfail", "unfail"),
    operation("GET", "/v1/workers", "workers"),
    operation("GET", "/v1/workers/{worker}", "workers"),
    operation("DELETE", "/v1/workers/{worker}", "forget"),
    operation("POST", "/v1/workers/{worker}/announce", "announce"),
    operation("POST", "/v1/workers/{worker}/relock", "relock"),
    operation("POST", "/v1/workers/{worker}/lost", "worker-lost"),
    operation("GET", "/v1/schedules", "recurring"),
    operation("POST", "/v1/schedules", "recur"),
    operation("GET", "/v1/schedules/{jid}", "recurring"),
    operation("DELETE", "/v1/schedules/{jid}", "unrecur"),
    operation("POST", "/v1/schedules/{jid}/pause", "recur-pause"),
    operation("POST", "/v1/schedules/{jid}/resume", "recur-resume"),
    operation("POST", "/v1/schedules/{jid}/run", "recur-run"),
    operation("GET", "/v1/options", "config"),
    operation("GET", "/v1/options/{key}", "config"),
    operation("PUT", "/v1/options/{key}", "set-config"),
    operation("DELETE", "/v1/options/{key}", "unset-config"),
    get("/v1/events", Endpoint::Events),
    get("/metrics", Endpoint::Metrics),
    get("/openapi.json", Endpoint::OpenApi),
    get("/healthz", Endpoint::Health),
    get("/readyz", Endpoint::Ready),
];

/// What `GET` may not change: the limits of a queue are shown and set by one operation.
const READ_ONLY: &[(&str, &[&str])] = &[("limits", &["queue"])];

impl Route {
    /// The names of the parameters in the path.
    pub(crate) fn parameters(&self) -> impl Iterator<Item = &'static str> + Clone {
        self.path.split('/').filter_map(|part| part.strip_prefix('{')?.strip_suffix('}'))
    }

    /// The fields of its operation that the query and the body may have.
    pub(crate) fn fields(&self, of: &'static OperationInfo) -> Vec<&'static FieldInfo> {
        let from_path: Vec<&str> =
            self.parameters().filter_map(|name| Some(field_of(of, name)?.name)).collect();
        let read_only = READ_ONLY.iter().find(|(name, _)| *name == of.name && self.method == "GET");
        let is_allowed = |name: &str| read_only.is_none_or(|(_, fields)| fields.contains(&name));
        of.fields.iter().filter(|field| !from_path.contains(&field.name) && is_allowed(field.name)).collect()
    }
}

/// The field that a parameter of a path is: of this name, or a list of one in its plural.
pub(crate) fn field_of(operation: &'static OperationInfo, parameter: &str) -> Option<&'static FieldInfo> {
    let field = |name: &str| operation.fields.iter().find(|field| field.name == name);
    field(parameter)
        .or_else(|| field(&format!("{parameter}s")).filter(|field| field.kind == FieldKind::Texts))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_route_has_an_operation_with_its_parameters() {
        for route in ROUTES {
            let Endpoint::Operation(name) = route.endpoint else { continue };
            let operation = OperationInfo::find(name).unwrap_or_else(|| panic!("{name}"));
            for parameter in route.parameters() {
                assert!(field_of(operation, parameter).is_some(), "{} {}", route.path, parameter);
            }
        }
    }

    #[test]
    fn every_operation_has_a_route() {
        for operation in geartrain_json::operations() {
            let is_routed = |route: &&Route| {
                matches!(route.endpoint, Endpoint::Operation(name) if name == operation.name)
                    || (operation.name == "events" && matches!(route.endpoint, Endpoint::Events))
            };
            assert!(ROUTES.iter().any(|route| is_routed(&route)), "{}", operation.name);
        }
    }
}
