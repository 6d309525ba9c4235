//! Access keys over HTTP: bearer tokens, sessions of browsers, roles, and the audit log.

use std::sync::Arc;

use geartrain_core::Role;
use geartrain_front::{AuditLog, AuditScope, change_keys, new_access_key};
use geartrain_http::{AccessControl, Options};
use geartrain_testkit::peers::Scratch;
use serde_json::json;

use crate::common::{Directory, Messages, Response, Server, stored};

struct Keys {
    scratch: Scratch,
    texts: Vec<(Role, String)>,
}

impl Keys {
    fn new() -> Keys {
        let (scratch, mut texts) = (Scratch::new("http-access"), Vec::new());
        for role in Role::ALL {
            let (key, text) = new_access_key(role.as_str(), role, 0, None).unwrap();
            change_keys(&scratch.path().join("keys"), |keys| {
                keys.push(key);
                Ok(())
            })
            .unwrap();
            texts.push((role, text));
        }
        Keys { scratch, texts }
    }

    fn access(&self) -> Arc<AccessControl> {
        let log = AuditLog::open(self.scratch.path().join("audit.log"), AuditScope::Administrative, 1 << 20);
        let access =
            AccessControl::open().with_password("secret").with_key_file(self.scratch.path().join("keys"));
        Arc::new(access.unwrap().with_audit(Some(log.unwrap())))
    }

    fn of(&self, role: Role) -> &str {
        &self.texts.iter().find(|(of, _)| *of == role).unwrap().1
    }

    fn bearer(&self, role: Role) -> String {
        format!("Authorization: Bearer {}\r\n", self.of(role))
    }
}

const JSON: &str = "Content-Type: application/json\r\n";
const FORM: &str = "Content-Type: application/x-www-form-urlencoded\r\nOrigin: http://localhost\r\n";

async fn log_in(server: &Server, key: &str) -> Response {
    server.send_with("POST", "/login", FORM, format!("key={key}").as_bytes()).await
}

/// The cookie that a response sets, as a browser sends it.
fn cookie(response: &Response) -> String {
    let set = response.head.lines().find_map(|line| line.strip_prefix("set-cookie: ")).unwrap();
    format!("Cookie: {}\r\n", set.split(';').next().unwrap())
}

#[tokio::test]
async fn a_role_may_do_what_the_table_says() {
    let keys = Keys::new();
    let access = keys.access();
    let server = Server::with(Options { access, ..Options::default() }).await;
    let put = br#"{"klass":"k"}"#;
    for (method, path, body, needed) in [
        ("GET", "/v1/queues", &b""[..], Role::Viewer),
        ("GET", "/metrics", b"", Role::Viewer),
        ("GET", "/v1/queues/q/limits", b"", Role::Viewer),
        ("POST", "/v1/queues/q/jobs", put, Role::Operator),
        ("POST", "/v1/queues/q/pause", b"", Role::Operator),
        ("PUT", "/v1/options/heartbeat", br#"{"value":60}"#, Role::Admin),
        ("DELETE", "/v1/queues/gone", b"", Role::Admin),
        ("GET", "/v1/audit", b"", Role::Admin),
        ("GET", "/v1/settings", b"", Role::Admin),
    ] {
        for role in Role::ALL {
            let headers = format!("{}{}", keys.bearer(role), if body.is_empty() { "" } else { JSON });
            let response = server.send_with(method, path, &headers, body).await;
            if role >= needed {
                assert_eq!(response.status, 200, "{method} {path} by {role}: {}", response.body);
            } else {
                assert_eq!(response.refusal(), (403, "forbidden".to_owned()), "{method} {path} by {role}");
                assert!(response.body.contains(&format!("the role {needed}")), "{}", response.body);
            }
        }
    }
    let viewer = format!("{}{JSON}", keys.bearer(Role::Viewer));
    let batch = br#"[{"put":{"queue":"q","klass":"k"}},{"queues":{}}]"#;
    let response = server.send_with("POST", "/v1/batch", &viewer, batch).await;
    assert_eq!(response.json()[0]["error"]["code"], "forbidden");
    assert!(response.json()[1].is_array(), "{}", response.body);
    server.end().await;
}

#[tokio::test]
async fn whoami_tells_the_name_and_the_role() {
    let keys = Keys::new();
    let server = Server::with(Options { access: keys.access(), ..Options::default() }).await;
    assert_eq!(server.send("GET", "/v1/whoami", "").await.refusal(), (401, "unauthorized".to_owned()));
    let viewer = server.send_with("GET", "/v1/whoami", &keys.bearer(Role::Viewer), b"").await.json();
    assert_eq!(viewer, json!({ "name": "viewer", "role": "viewer", "login": true, "read_only": false }));
    let owner = server.send_with("GET", "/v1/whoami", "Authorization: Bearer secret\r\n", b"").await.json();
    assert_eq!(owner, json!({ "name": null, "role": "admin", "login": true, "read_only": false }));
    server.end().await;
    let access = Arc::new(AccessControl::open().read_only(true));
    let server = Server::with(Options { access, ..Options::default() }).await;
    let anyone = server.ask("GET", "/v1/whoami", "").await;
    assert_eq!(anyone, json!({ "name": null, "role": "admin", "login": false, "read_only": true }));
    let put = server.refused("POST", "/v1/queues/q/jobs", r#"{"klass":"k"}"#).await;
    assert_eq!(put, (403, "read-only".to_owned()));
    server.end().await;
}

#[tokio::test]
async fn a_login_begins_a_session_that_a_logout_ends() {
    let keys = Keys::new();
    let server = Server::with(Options { access: keys.access(), ..Options::default() }).await;
    let refused = log_in(&server, "gtk_wrong").await;
    assert_eq!(refused.status, 303);
    assert!(refused.head.contains("location: login?failed") && !refused.head.contains("set-cookie"));
    let response = log_in(&server, keys.of(Role::Operator)).await;
    assert_eq!(response.status, 303);
    assert!(
        response.head.contains("location: ./\r\n") || response.head.ends_with("location: ./"),
        "{}",
        response.head
    );
    for part in ["geartrain_session=", "; httponly", "; samesite=strict", "; path=/;"] {
        assert!(response.head.contains(part), "{}", response.head);
    }
    assert!(!response.head.contains("; secure"), "{}", response.head);
    let cookie = cookie(&response);
    let who = server.send_with("GET", "/v1/whoami", &cookie, b"").await.json();
    assert_eq!((&who["name"], &who["role"]), (&json!("operator"), &json!("operator")));
    let from_page = format!("{cookie}{JSON}Origin: http://localhost\r\n");
    let put = server.send_with("POST", "/v1/queues/q/jobs", &from_page, br#"{"klass":"k"}"#).await;
    assert_eq!(put.status, 200, "{}", put.body);
    let out =
        server.send_with("POST", "/logout", &format!("{cookie}Origin: http://localhost\r\n"), b"").await;
    assert_eq!(out.status, 303);
    assert!(out.head.contains("max-age=0"), "{}", out.head);
    assert_eq!(server.send_with("GET", "/v1/whoami", &cookie, b"").await.status, 401);
    server.end().await;
}

#[tokio::test]
async fn a_session_is_no_use_to_other_sites() {
    let keys = Keys::new();
    let server = Server::with(Options { access: keys.access(), ..Options::default() }).await;
    let cookie = cookie(&log_in(&server, keys.of(Role::Admin)).await);
    let put = br#"{"klass":"k"}"#;
    for headers in [
        "Origin: http://evil.example\r\n",
        "Sec-Fetch-Site: cross-site\r\n",
        "Origin: null\r\n",
        // Of no page: a browser would say which.
        "",
    ] {
        let headers = format!("{cookie}{JSON}{headers}");
        let response = server.send_with("POST", "/v1/queues/q/jobs", &headers, put).await;
        assert_eq!(response.refusal(), (403, "cross-origin".to_owned()), "{headers}");
    }
    // Nor can another site log a browser in, with a key of its own.
    let foreign = "Content-Type: application/x-www-form-urlencoded\r\nOrigin: http://evil.example\r\n";
    let response = server.send_with("POST", "/login", foreign, b"key=x").await;
    assert_eq!(response.refusal(), (403, "cross-origin".to_owned()));
    for (content_type, body, status) in [
        (JSON, &br#"{"key":"x"}"#[..], 415),
        ("Content-Type: application/x-www-form-urlencoded\r\n", b"nothing=x", 400),
        ("Content-Type: application/x-www-form-urlencoded\r\n", &[b'k'; 9_000], 413),
    ] {
        assert_eq!(server.send_with("POST", "/login", content_type, body).await.status, status);
    }
    server.end().await;
}

#[tokio::test]
async fn streams_and_waits_end_with_the_key_or_the_session() {
    let keys = Keys::new();
    let access = keys.access();
    let server = Server::with(Options { access: access.clone(), ..Options::default() }).await;
    let accept = "Accept: text/event-stream\r\n";
    let cookie = cookie(&log_in(&server, keys.of(Role::Operator)).await);
    let mut of_session =
        Messages::of(server.open("GET", "/v1/events", &format!("{cookie}{accept}"), b"").await).await;
    let viewer = format!("{}{accept}", keys.bearer(Role::Viewer));
    let mut of_key = Messages::of(server.open("GET", "/v1/events", &viewer, b"").await).await;
    let operator = format!("{}{JSON}", keys.bearer(Role::Operator));
    let wait = server.send_with("POST", "/v1/queues/q/pop", &operator, br#"{"worker":"w","wait":"1h"}"#);
    server.send_with("POST", "/logout", &format!("{cookie}Origin: http://localhost\r\n"), b"").await;
    of_session.ended().await;
    let remove = async {
        change_keys(&keys.scratch.path().join("keys"), |keys| {
            keys.clear();
            Ok(())
        })
        .unwrap();
        // Until the wait has begun, a reload would make the request a refused one, which is as good.
        tokio::task::yield_now().await;
        access.reload().unwrap();
    };
    let (waited, ()) = tokio::join!(wait, remove);
    assert_eq!(waited.refusal(), (401, "unauthorized".to_owned()));
    of_key.ended().await;
    server.end().await;
}

#[tokio::test]
async fn refused_keys_slow_their_sender_down() {
    let keys = Keys::new();
    let server = Server::with(Options { access: keys.access(), ..Options::default() }).await;
    for _ in 0..3 {
        log_in(&server, "wrong").await;
    }
    let items = server.send_with("GET", "/v1/audit", &keys.bearer(Role::Admin), b"").await.json();
    let refused = items["items"].as_array().unwrap();
    assert_eq!(refused.len(), 3);
    assert!(refused.iter().all(|item| item["action"] == "login" && item["outcome"] == "refused"), "{items}");
    assert!(refused.iter().all(|item| item["from"] == "127.0.0.1" && item["target"].is_null()), "{items}");
    server.end().await;
}

#[tokio::test]
async fn the_audit_log_tells_who_changed_what() {
    let keys = Keys::new();
    let server = Server::with(Options { access: keys.access(), ..Options::default() }).await;
    let operator = format!("{}{JSON}", keys.bearer(Role::Operator));
    for (method, path, body) in [
        ("POST", "/v1/queues/mail/jobs", r#"{"klass":"k","jid":"j1"}"#),
        ("POST", "/v1/queues/mail/jobs", r#"{"klass":"k","jid":"j2"}"#),
        ("POST", "/v1/queues/mail/pause", "{}"),
        ("POST", "/v1/bulk/cancel", r#"{"where":"queue=mail","dry_run":true}"#),
        ("POST", "/v1/bulk/cancel", r#"{"where":"queue=mail"}"#),
        ("DELETE", "/v1/queues/mail", ""),
    ] {
        server.send_with(method, path, &operator, body.as_bytes()).await;
    }
    let admin = keys.bearer(Role::Admin);
    let audit = server.send_with("GET", "/v1/audit?limit=2", &admin, b"").await.json();
    let shown = |item: &serde_json::Value| {
        (item["action"].clone(), item["target"].clone(), item["count"].clone(), item["outcome"].clone())
    };
    let items = audit["items"].as_array().unwrap();
    assert_eq!(shown(&items[0]), (json!("forget"), json!("mail"), json!(null), json!("forbidden")));
    assert_eq!(shown(&items[1]), (json!("bulk-cancel"), json!("queue=mail"), json!(2), json!("ok")));
    for item in items {
        assert_eq!((&item["who"], &item["role"]), (&json!("operator"), &json!("operator")));
        assert!(item["from"].as_str().unwrap().starts_with("127.0.0.1:") && item["at"].is_number());
    }
    let next = format!("/v1/audit?before={}", audit["next"]);
    let rest = server.send_with("GET", &next, &admin, b"").await.json();
    assert_eq!(
        rest["items"].as_array().unwrap().iter().map(shown).collect::<Vec<_>>(),
        [(json!("pause"), json!("mail"), json!(1), json!("ok"))]
    );
    assert_eq!(rest["next"], json!(null));
    for query in ["limit=x", "before=-1", "after=1"] {
        assert_eq!(server.send_with("GET", &format!("/v1/audit?{query}"), &admin, b"").await.status, 400);
    }
    server.end().await;
}

#[tokio::test]
async fn refused_actions_and_backups_are_in_the_audit_log() {
    let (keys, directory) = (Keys::new(), Directory::new("audit"));
    let options = Options { access: keys.access(), ..Options::default() };
    let server = Server::over(stored(directory.path()), options).await;
    let (operator, admin) = (keys.bearer(Role::Operator), keys.bearer(Role::Admin));
    for (caller, role, method, path, body, action, outcome) in [
        (&operator, "operator", "DELETE", "/v1/queues/mail", "", "forget", "forbidden"),
        (&operator, "operator", "PUT", "/v1/options/heartbeat", r#"{"value":60}"#, "set-config", "forbidden"),
        (&operator, "operator", "GET", "/v1/backup", "", "backup", "forbidden"),
        (&admin, "admin", "GET", "/v1/backup", "", "backup", "ok"),
    ] {
        let headers = format!("{caller}{}", if body.is_empty() { "" } else { JSON });
        let response = server.send_with(method, path, &headers, body.as_bytes()).await;
        assert_eq!(response.status, if outcome == "ok" { 200 } else { 403 }, "{path}");
        let audit = server.send_with("GET", "/v1/audit?limit=1", &admin, b"").await.json();
        let item = &audit["items"][0];
        assert_eq!((&item["action"], &item["outcome"]), (&json!(action), &json!(outcome)), "{audit}");
        assert_eq!(item["who"], role, "{audit}");
    }
    server.end().await;
}

/// The cookie holds for the path under which the router is mounted, and redirects stay below it.
#[tokio::test]
async fn a_session_works_under_a_prefix() {
    let keys = Keys::new();
    let backend =
        Arc::new(geartrain_store::StoreBackend::in_memory(Arc::new(geartrain_core::SystemClock)).unwrap());
    let options = Options { access: keys.access(), ..Options::default() };
    let app = axum::Router::new().nest("/ops/queue", geartrain_http::router(backend, options));
    let request = axum::http::Request::post("/ops/queue/login")
        .header("host", "localhost")
        .header("content-type", "application/x-www-form-urlencoded")
        .header("x-forwarded-proto", "https")
        .body(axum::body::Body::from(format!("key={}", keys.of(Role::Viewer))))
        .unwrap();
    let response = tower::ServiceExt::oneshot(app, request).await.unwrap();
    assert_eq!(response.status(), 303);
    let cookie = response.headers()["set-cookie"].to_str().unwrap();
    assert!(cookie.contains("; Path=/ops/queue;") && cookie.ends_with("; Secure"), "{cookie}");
    assert_eq!(response.headers()["location"], "../queue");
}
