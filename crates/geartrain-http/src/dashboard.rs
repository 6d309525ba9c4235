//! The dashboard: pages that a browser builds from the API, as files in the binary.
//!
//! The files carry no data, so they need no key. Their addresses contain a hash of all contents: browsers keep them
//! for ever, and a new version has new addresses. All addresses are relative, so the router works under a prefix.

use std::hash::Hasher;
use std::sync::LazyLock;

use axum::body::{Body, Bytes};
use axum::http::header::{self, HeaderMap, HeaderName, HeaderValue};
use axum::http::{Response, StatusCode};
use geartrain_json::OperationError;

use crate::respond::{self, Reply};

/// What the pages may load and do: their own files, and requests to this server.
const POLICY: &str = "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; connect-src 'self'; \
                      form-action 'self'; frame-ancestors 'none'; base-uri 'none'; \
                      require-trusted-types-for 'script'; trusted-types 'none'";

/// The part of an address in a page that the hash replaces.
const PLACEHOLDER: &str = "VERSION";

const HTML: &str = "text/html; charset=utf-8";
const SCRIPT: &str = "text/javascript; charset=utf-8";

macro_rules! files {
    ($($name:literal: $content_type:expr),* $(,)?) => {
        &[$(File { name: $name, content_type: $content_type, content: include_str!(concat!("../dashboard/", $name)) }),*]
    };
}

struct File {
    name: &'static str,
    content_type: &'static str,
    content: &'static str,
}

const FILES: &[File] = files! {
    "style.css": "text/css; charset=utf-8",
    "icon.svg": "image/svg+xml",
    "actions.js": SCRIPT,
    "api.js": SCRIPT,
    "app.js": SCRIPT,
    "charts.js": SCRIPT,
    "dom.js": SCRIPT,
    "format.js": SCRIPT,
    "icons.js": SCRIPT,
    "json.js": SCRIPT,
    "live.js": SCRIPT,
    "login.js": SCRIPT,
    "prefs.js": SCRIPT,
    "session.js": SCRIPT,
    "timeline.js": SCRIPT,
    "ui.js": SCRIPT,
    "pages/audit.js": SCRIPT,
    "pages/events.js": SCRIPT,
    "pages/failures.js": SCRIPT,
    "pages/group.js": SCRIPT,
    "pages/job.js": SCRIPT,
    "pages/jobs.js": SCRIPT,
    "pages/log.js": SCRIPT,
    "pages/overview.js": SCRIPT,
    "pages/queue.js": SCRIPT,
    "pages/queues.js": SCRIPT,
    "pages/schedules.js": SCRIPT,
    "pages/settings.js": SCRIPT,
    "pages/tracked.js": SCRIPT,
    "pages/worker.js": SCRIPT,
    "pages/workers.js": SCRIPT,
};

/// A hash of all files. It changes with any of them.
static VERSION: LazyLock<String> = LazyLock::new(|| hash(FILES.iter().map(|file| file.content)));
static INDEX: LazyLock<Page> = LazyLock::new(|| Page::new(include_str!("../dashboard/index.html")));
static LOGIN: LazyLock<Page> = LazyLock::new(|| Page::new(include_str!("../dashboard/login.html")));

struct Page {
    content: String,
    tag: String,
}

impl Page {
    fn new(template: &str) -> Page {
        let content = template.replace(PLACEHOLDER, &VERSION);
        let tag = hash([content.as_str()]);
        Page { content, tag }
    }
}

/// Told apart by content only, so no cryptographic hash is needed.
fn hash<'a>(contents: impl IntoIterator<Item = &'a str>) -> String {
    let mut hasher = std::hash::DefaultHasher::new();
    for content in contents {
        hasher.write(content.as_bytes());
        hasher.write_u8(0);
    }
    format!("{:016x}", hasher.finish())
}

/// The page of everything: its script reads the route behind the `#`.
///
/// `path` is the one that the browser asked for. Nested under a prefix, an axum router has no route for the prefix with
/// a slash at its end, so the page is at the prefix itself, and its relative addresses begin with the last part of it.
pub(crate) fn index(path: &str, headers: &HeaderMap) -> Reply {
    match path.rsplit('/').next() {
        None | Some("") => page(&INDEX, headers),
        // What has no meaning in HTML.
        Some(last) if last.chars().all(|char| char.is_ascii_alphanumeric() || "-._~%".contains(char)) => {
            let content = INDEX.content.replace("\"assets/", &format!("\"./{last}/assets/"));
            let tag = hash([content.as_str()]);
            file(HTML, content.into(), &tag, "no-cache", headers)
        }
        Some(_) => not_found(),
    }
}

/// The page with the form that asks for a key.
pub(crate) fn login(headers: &HeaderMap) -> Reply {
    page(&LOGIN, headers)
}

fn page(page: &'static Page, headers: &HeaderMap) -> Reply {
    // Asked for each time, because it names the version of the files.
    file(HTML, Bytes::from_static(page.content.as_bytes()), &page.tag, "no-cache", headers)
}

/// A file of the pages.
pub(crate) fn asset(version: &str, name: &str, headers: &HeaderMap) -> Reply {
    // A page of another version finds nothing here, rather than files that do not fit it.
    let found = FILES.iter().find(|file| file.name == name).filter(|_| version == *VERSION);
    match found {
        Some(found) => {
            let forever = "public, max-age=31536000, immutable";
            file(found.content_type, Bytes::from_static(found.content.as_bytes()), &VERSION, forever, headers)
        }
        None => not_found(),
    }
}

fn not_found() -> Reply {
    respond::error(&OperationError::new(
        "not-found",
        "there is no such file in this version of the dashboard",
    ))
}

fn file(
    content_type: &'static str,
    content: Bytes,
    tag: &str,
    cache: &'static str,
    headers: &HeaderMap,
) -> Reply {
    let tag = format!("\"{tag}\"");
    let mut reply = if is_known(headers, &tag) {
        let mut reply = Response::new(Body::empty());
        *reply.status_mut() = StatusCode::NOT_MODIFIED;
        reply
    } else {
        respond::with_type(StatusCode::OK, content_type, content)
    };
    let headers = reply.headers_mut();
    headers.insert(header::CACHE_CONTROL, HeaderValue::from_static(cache));
    if let Ok(tag) = HeaderValue::from_str(&tag) {
        headers.insert(header::ETAG, tag);
    }
    headers.insert(header::CONTENT_SECURITY_POLICY, HeaderValue::from_static(POLICY));
    headers.insert(header::X_CONTENT_TYPE_OPTIONS, HeaderValue::from_static("nosniff"));
    headers.insert(header::X_FRAME_OPTIONS, HeaderValue::from_static("DENY"));
    // Names of jobs and queues stay in the address bar.
    headers.insert(header::REFERRER_POLICY, HeaderValue::from_static("same-origin"));
    const OPENER: HeaderName = HeaderName::from_static("cross-origin-opener-policy");
    headers.insert(OPENER, HeaderValue::from_static("same-origin"));
    reply
}

/// Whether the browser has this version: `If-None-Match` lists tags, or says `*`.
fn is_known(headers: &HeaderMap, tag: &str) -> bool {
    let lists = headers.get_all(header::IF_NONE_MATCH).iter().filter_map(|list| list.to_str().ok());
    lists
        .flat_map(|list| list.split(','))
        .map(|one| one.trim().trim_start_matches("W/"))
        .any(|one| one == "*" || one == tag)
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;
    use std::path::Path;

    use super::*;

    /// The files below a directory, relative to `root`.
    fn on_disk(root: &Path, directory: &Path, found: &mut BTreeSet<String>) {
        for entry in std::fs::read_dir(directory).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                on_disk(root, &path, found);
            } else {
                found.insert(path.strip_prefix(root).unwrap().to_str().unwrap().replace('\\', "/"));
            }
        }
    }

    #[test]
    fn every_file_of_the_directory_is_in_the_table() {
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("dashboard");
        let mut found = BTreeSet::new();
        on_disk(&root, &root, &mut found);
        let pages = ["index.html", "login.html"].map(str::to_owned);
        let known = FILES.iter().map(|file| file.name.to_owned()).chain(pages).collect::<BTreeSet<_>>();
        assert_eq!(found, known);
    }

    #[test]
    fn every_import_and_address_leads_to_a_file() {
        for file in FILES.iter().filter(|file| file.content_type == SCRIPT) {
            let base = file.name.rsplit_once('/').map_or("", |(directory, _)| directory);
            // A long list of names has the path on its last line.
            let is_import = |line: &&str| line.starts_with("import ") || line.starts_with("} from ");
            let paths = file.content.lines().filter(is_import).filter_map(|line| line.split('\'').nth(1));
            for import in paths {
                let name = match import.strip_prefix("../") {
                    Some(name) => name.to_owned(),
                    None => format!("{base}{}{}", if base.is_empty() { "" } else { "/" }, &import[2..]),
                };
                assert!(FILES.iter().any(|known| known.name == name), "{}: {import}", file.name);
            }
        }
        for page in [&*INDEX, &*LOGIN] {
            let prefix = format!("\"assets/{}/", *VERSION);
            let names =
                page.content.split(prefix.as_str()).skip(1).map(|rest| rest.split('"').next().unwrap());
            assert_eq!(
                names.clone().filter(|name| FILES.iter().any(|file| file.name == *name)).count(),
                names.count()
            );
        }
    }

    /// What the security policy would refuse, or what would read data as markup.
    #[test]
    fn nothing_is_inline_and_nothing_is_read_as_markup() {
        for page in [include_str!("../dashboard/index.html"), include_str!("../dashboard/login.html")] {
            assert!(!page.contains("style=") && !page.contains("<style") && !page.contains(" on"), "{page}");
            assert_eq!(page.matches("<script").count(), page.matches("<script type=\"module\" src=").count());
        }
        for file in FILES {
            for refused in [
                "innerHTML",
                "outerHTML",
                "insertAdjacentHTML",
                "document.write",
                "eval(",
                "new Function",
                "http://",
                "https://",
            ] {
                let text = file.content.replace("http://www.w3.org/", "");
                assert!(!text.contains(refused), "{} has {refused}", file.name);
            }
        }
    }
}
