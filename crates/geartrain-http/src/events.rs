//! Events as SSE: filters, and resumption by the position of the last event.

use std::pin::Pin;
use std::sync::Arc;

use axum::http::HeaderMap;
use geartrain_core::{BackendError, Subscription};
use geartrain_json::{OperationError, PublishedView};
use serde_json::Value;

use crate::guard::Access;
use crate::handlers::{Query, Shared};
use crate::respond::Reply;
use crate::sse::{self, Message, Next, Source};

/// The keys of an event by which it can be selected.
pub(crate) const FILTERS: [&str; 5] = ["event", "jid", "queue", "worker", "group"];

/// Streams the events after `Last-Event-ID` or `after`, or from now on.
pub(crate) async fn stream(
    shared: &Arc<Shared>,
    query: &Query,
    headers: &HeaderMap,
    access: &Access,
) -> Result<Reply, OperationError> {
    let (mut after, mut filters) = (None, Vec::new());
    for (name, value) in query {
        match FILTERS.iter().find(|filter| *filter == name) {
            Some(filter) => filters.push((*filter, value.clone())),
            None if name == "after" => after = Some(value.as_str()),
            None => {
                let name = geartrain_json::excerpt(name);
                let why = format!(
                    "there is no parameter `{name}`; the parameters are after, {}",
                    FILTERS.join(", ")
                );
                return Err(OperationError::new("unknown-field", why));
            }
        }
    }
    // A browser that connects again knows better than the URL with which it began.
    let last = headers.get("last-event-id").map(|last| last.to_str().unwrap_or("?"));
    let (last, after) = (last.map(position).transpose()?, after.map(position).transpose()?);
    let subscription = match last.or(after) {
        None => shared.backend.subscribe().await?,
        Some(position) => shared.backend.subscribe_from(position).await?,
    };
    Ok(sse::respond(Events { subscription, filters }, shared.stop.clone(), access.revoked.clone()))
}

fn position(text: &str) -> Result<u64, OperationError> {
    text.parse().map_err(|_| {
        OperationError::bad_argument(format!("{:?} is not a position", geartrain_json::excerpt(text)))
    })
}

struct Events {
    subscription: Box<dyn Subscription>,
    /// Several values of one key are alternatives.
    filters: Vec<(&'static str, String)>,
}

impl Events {
    fn selects(&self, view: &Value) -> bool {
        FILTERS.iter().all(|key| {
            let mut values = self.filters.iter().filter(|(filter, _)| filter == key).peekable();
            values.peek().is_none() || values.any(|(_, value)| view[key].as_str() == Some(value))
        })
    }
}

impl Source for Events {
    fn next(&mut self) -> Pin<Box<dyn Future<Output = Next> + Send + '_>> {
        Box::pin(async move {
            match self.subscription.next().await {
                Ok(published) => match serde_json::to_value(PublishedView::of(&published)) {
                    Ok(view) if self.selects(&view) => Next::Message(Message {
                        id: Some(published.position.to_string()),
                        event: None,
                        data: view.to_string(),
                    }),
                    _ => Next::Skip,
                },
                // The client connects again, and goes on behind the last event that it got.
                Err(end) => {
                    let error: OperationError =
                        BackendError::Broken { backend: "chosen", source: Box::new(end) }.into();
                    Next::Last(Message { id: None, event: Some("error"), data: error.document() })
                }
            }
        })
    }
}
