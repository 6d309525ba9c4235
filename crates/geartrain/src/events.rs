//! Events as a stream.

use std::pin::Pin;
use std::task::{Context, Poll, ready};

use futures_core::Stream;

use crate::{PositionedEvent, Subscription, SubscriptionEnd};

/// The events of a queue, from [`Client::events`](crate::Client::events).
///
/// [`next`](Events::next) waits for one event. It is also a [`Stream`], which ends after an error; with
/// `StreamExt` in scope `next` is still this method.
///
/// ```
/// # fn main() -> Result<(), Box<dyn std::error::Error>> { pollster::block_on(async {
/// use futures_util::StreamExt;
/// use geartrain::Event;
/// let client = geartrain::connect("memory:").await?;
/// let events = client.events().await?;
/// client.put("mail", "welcome", "{}").await?;
/// client.put("news", "digest", "{}").await?;
/// let mut puts = events.filter_map(async |event| match &*event.ok()?.event {
///     Event::Put { queue, .. } => Some(queue.to_string()),
///     _ => None,
/// });
/// let mut puts = std::pin::pin!(puts);
/// assert_eq!(puts.next().await.as_deref(), Some("mail"));
/// assert_eq!(puts.next().await.as_deref(), Some("news"));
/// # Ok(()) }) }
/// ```
pub struct Events {
    position: u64,
    state: State,
}

type Item = Result<PositionedEvent, SubscriptionEnd>;

/// The next event, with the subscription.
type Next = Pin<Box<dyn Future<Output = (Box<dyn Subscription>, Item)> + Send>>;

enum State {
    Idle(Box<dyn Subscription>),
    /// A poll of the stream found no event. The future owns the subscription, which is borrowed while it waits.
    Polled(Next),
    Ended(SubscriptionEnd),
}

impl std::fmt::Debug for Events {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Events").field("position", &self.position).finish_non_exhaustive()
    }
}

impl Events {
    pub(crate) fn new(subscription: Box<dyn Subscription>) -> Events {
        Events { position: subscription.position(), state: State::Idle(subscription) }
    }

    /// Waits for the next event.
    pub async fn next(&mut self) -> Result<PositionedEvent, SubscriptionEnd> {
        if let State::Idle(subscription) = &mut self.state {
            return subscription.next().await;
        }
        std::future::poll_fn(|context| self.poll_event(context)).await
    }

    /// The position of the newest event when the subscription began, 0 if there was none.
    pub fn position(&self) -> u64 {
        self.position
    }

    fn poll_event(&mut self, context: &mut Context<'_>) -> Poll<Item> {
        loop {
            match &mut self.state {
                State::Ended(end) => return Poll::Ready(Err(end.clone())),
                State::Polled(next) => {
                    let (subscription, item) = ready!(next.as_mut().poll(context));
                    self.state = State::Idle(subscription);
                    return Poll::Ready(item);
                }
                State::Idle(_) => {
                    // The end is a placeholder, which the next line replaces.
                    let idle = std::mem::replace(&mut self.state, State::Ended(SubscriptionEnd::Closed));
                    let State::Idle(mut subscription) = idle else { continue };
                    self.state = State::Polled(Box::pin(async move {
                        let item = subscription.next().await;
                        (subscription, item)
                    }));
                }
            }
        }
    }
}

impl Stream for Events {
    type Item = Result<PositionedEvent, SubscriptionEnd>;

    fn poll_next(self: Pin<&mut Events>, context: &mut Context<'_>) -> Poll<Option<Item>> {
        let this = self.get_mut();
        if let State::Ended(_) = this.state {
            return Poll::Ready(None);
        }
        let item = ready!(this.poll_event(context));
        if let Err(end) = &item {
            this.state = State::Ended(end.clone());
        }
        Poll::Ready(Some(item))
    }
}

impl Subscription for Events {
    fn next(&mut self) -> Pin<Box<dyn Future<Output = Item> + Send + '_>> {
        Box::pin(Events::next(self))
    }

    fn position(&self) -> u64 {
        self.position
    }
}
