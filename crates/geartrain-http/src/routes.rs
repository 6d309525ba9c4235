//! The routes: a table of methods, paths and operations. Parameters of paths are fields of the operation.

use geartrain_core::Role;
use geartrain_json::{FieldInfo, FieldKind, Need, OperationInfo, Reach};

use crate::{history, login};

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
    /// Rates and depths of queues over the last day.
    History,
    /// The server itself.
    Server,
    /// The settings of the program.
    Settings,
    /// The result log.
    Log,
    /// How large it is.
    LogSize,
    /// A backup as a tar archive.
    Backup,
    Metrics,
    OpenApi,
    /// The process answers.
    Health,
    /// The queue answers.
    Ready,
    /// Who asks.
    WhoAmI,
    /// The audit log.
    Audit,
    /// The login page.
    LogInPage,
    /// Its form.
    LogIn,
    LogOut,
}

impl Endpoint {
    /// The role that a caller needs at least; none if no key is needed, because it tells nothing about the
    /// queue. An operation has a role of its own besides.
    pub(crate) fn access(self) -> Option<Role> {
        match self {
            Endpoint::Operation(_)
            | Endpoint::Batch
            | Endpoint::Events
            | Endpoint::ResultStream
            | Endpoint::History
            | Endpoint::Server
            | Endpoint::Log
            | Endpoint::LogSize
            | Endpoint::Metrics
            | Endpoint::WhoAmI => Some(Role::Viewer),
            Endpoint::Audit | Endpoint::Backup | Endpoint::Settings => Some(Role::Admin),
            Endpoint::OpenApi
            | Endpoint::Health
            | Endpoint::Ready
            | Endpoint::LogInPage
            | Endpoint::LogIn
            | Endpoint::LogOut => None,
        }
    }

    /// Its name in a refusal.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Endpoint::Operation(name) => name,
            Endpoint::Audit => "the audit log",
            Endpoint::Settings => "the settings of the server",
            _ => "this",
        }
    }
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
    operation("PATCH", "/v1/schedules/{jid}", "recur-edit"),
    operation("DELETE", "/v1/schedules/{jid}", "unrecur"),
    operation("POST", "/v1/schedules/{jid}/pause", "recur-pause"),
    operation("POST", "/v1/schedules/{jid}/resume", "recur-resume"),
    operation("POST", "/v1/schedules/{jid}/run", "recur-run"),
    operation("GET", "/v1/options", "config"),
    operation("GET", "/v1/options/{key}", "config"),
    operation("PUT", "/v1/options/{key}", "set-config"),
    operation("DELETE", "/v1/options/{key}", "unset-config"),
    get("/v1/events", Endpoint::Events),
    get("/v1/whoami", Endpoint::WhoAmI),
    get("/v1/audit", Endpoint::Audit),
    get("/login", Endpoint::LogInPage),
    Route { method: "POST", path: "/login", endpoint: Endpoint::LogIn },
    Route { method: "POST", path: "/logout", endpoint: Endpoint::LogOut },
    get("/v1/history", Endpoint::History),
    get("/v1/server", Endpoint::Server),
    get("/v1/settings", Endpoint::Settings),
    get("/v1/log", Endpoint::Log),
    get("/v1/log/size", Endpoint::LogSize),
    get("/v1/backup", Endpoint::Backup),
    get("/metrics", Endpoint::Metrics),
    get("/openapi.json", Endpoint::OpenApi),
    get("/healthz", Endpoint::Health),
    get("/readyz", Endpoint::Ready),
];

impl Endpoint {
    /// The fields of the query, of an endpoint that is no operation.
    pub(crate) fn fields(self) -> &'static [FieldInfo] {
        match self {
            Endpoint::Events => OperationInfo::find("events").map_or(&[], |events| events.fields),
            Endpoint::History => history::FIELDS,
            Endpoint::Log => geartrain_json::LOG_FIELDS,
            Endpoint::Audit => login::AUDIT_FIELDS,
            _ => &[],
        }
    }
}

/// Fields that their operation has, and a route does not: its method only reads, or its path says what is meant.
const NOT_OF_ROUTE: &[(&str, &str, &[&str])] = &[
    ("GET", "/v1/queues/{queue}/limits", &["max", "by_priority", "rate", "max_concurrency", "none"]),
    ("GET", "/v1/queues/{queue}/status", &["jid"]),
    ("GET", "/v1/jobs/{jid}/status", &["queue"]),
    ("GET", "/v1/schedules", &["jid"]),
];

impl Route {
    /// The names of the parameters in the path.
    pub(crate) fn parameters(&self) -> impl Iterator<Item = &'static str> + Clone {
        self.path.split('/').filter_map(|part| part.strip_prefix('{')?.strip_suffix('}'))
    }

    /// The fields of its operation that the query and the body may have.
    pub(crate) fn fields(&self, of: &'static OperationInfo) -> Vec<&'static FieldInfo> {
        let from_path: Vec<&FieldInfo> = self.parameters().filter_map(|name| field_of(of, name)).collect();
        // One way to say what is meant, where the operation has several.
        let needs_one = |need: Need| matches!(need, Need::ExactlyOne | Need::AtMostOne);
        let is_chosen = from_path.iter().any(|field| needs_one(field.need));
        let is_bulk = self.path.starts_with("/v1/bulk/");
        let not_here =
            NOT_OF_ROUTE.iter().find(|(method, path, _)| (*method, *path) == (self.method, self.path));
        let is_here = |field: &&FieldInfo| {
            let is_settled = is_chosen && needs_one(field.need);
            !from_path.contains(field)
                && !is_settled
                && field.reach != if is_bulk { Reach::One } else { Reach::Many }
                && not_here.is_none_or(|(_, _, fields)| !fields.contains(&field.name))
        };
        of.fields.iter().filter(is_here).collect()
    }
}

/// The field that a parameter of a path is: of this name, or a list of one in its plural.
pub(crate) fn field_of(operation: &'static OperationInfo, parameter: &str) -> Option<&'static FieldInfo> {
    let field = |name: &str| operation.fields.iter().find(|field| field.name == name);
    field(parameter)
        .or_else(|| field(&format!("{parameter}s")).filter(|field| matches!(field.kind, FieldKind::Names(_))))
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
