//! Failover detection: which node is the primary, noticed even while connections to the old one stay open.
//!
//! A stopped process (SIGSTOP, a paused virtual machine) keeps its connections, so nothing on them shows that
//! another node was promoted. The knowledge comes from the sentinels' `+switch-master`, or from asking the
//! sentinels or Cluster nodes while a call is slow. Answers are ordered by their configuration epoch, which
//! grows with every failover, so that a peer that missed the last one cannot lead back to the old primary.

use std::time::Duration;

use futures_util::StreamExt;
use futures_util::stream::FuturesUnordered;
use redis::Value;
use tokio::sync::watch;
use tokio::time::{Instant, sleep_until};

use crate::connection::ConnectionError;
use crate::url::Node;

/// How long peers may take to answer; and the others, once one has.
const PEERS_MAX: Duration = Duration::from_secs(5);
const OTHERS_MAX: Duration = Duration::from_millis(500);

/// A primary, and the configuration epoch in which it was promoted.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct PrimaryVersion {
    pub(crate) node: Node,
    pub(crate) epoch: u64,
}

/// The primary as this process knows it; None with a single node.
pub(crate) struct Primary {
    known: watch::Sender<Option<PrimaryVersion>>,
}

impl Primary {
    pub(crate) fn new() -> Primary {
        Primary { known: watch::Sender::new(None) }
    }

    /// Whether a connection's node has been replaced. Never true with a single node.
    pub(crate) fn is_superseded(&self, node: Option<&Node>) -> bool {
        node.is_some_and(|node| self.known.borrow().as_ref().is_some_and(|known| known.node != *node))
    }

    /// Returns when the node has been replaced.
    pub(crate) async fn superseded(&self, node: Option<&Node>) {
        let Some(node) = node else { return std::future::pending().await };
        let mut known = self.known.subscribe();
        // Cannot fail: it ends only with the sender, which is ours.
        let _ = known.wait_for(|known| known.as_ref().is_some_and(|known| known.node != *node)).await;
    }

    /// Adopts what peers say, unless a later failover is known. `all` if every peer in the URL answered: then
    /// a lower epoch is valid too, because the administrator has set up the peers anew. Returns whether the
    /// answer agrees with what is known now.
    pub(crate) fn learn(&self, said: PrimaryVersion, all: bool) -> bool {
        let mut agrees = true;
        self.known.send_if_modified(|known| {
            if let Some(old) = known {
                // Where nodes do not know their own host, each peer reports the address it was reached by.
                if old.epoch == said.epoch && old.node.1 == said.node.1 {
                    return false;
                }
                agrees = old.epoch < said.epoch || all;
                if !agrees {
                    return false;
                }
                let ((old_host, old_port), (host, port)) = (&old.node, &said.node);
                if old.node != said.node {
                    tracing::warn!("the primary is now {host}:{port}, no longer {old_host}:{old_port}");
                }
            }
            *known = Some(said);
            true
        });
        agrees
    }

    /// A sentinel announced a failover. The announcement has no epoch, but it is above the current one.
    /// Announcements of earlier failovers, from a sentinel that learned of them late, name another old
    /// primary.
    pub(crate) fn switched(&self, old: &Node, new: Node) {
        let known = self.known.borrow().clone();
        if let Some(known) = known.filter(|known| known.node == *old) {
            self.learn(PrimaryVersion { node: new, epoch: known.epoch + 1 }, false);
        }
    }

    /// Asks all peers at once and adopts the answer with the highest epoch. `named` peers are in the URL;
    /// these come first.
    pub(crate) async fn survey<F>(
        &self,
        peers: &[Node],
        named: usize,
        ask: impl Fn(Node) -> F,
    ) -> Result<Node, ConnectionError>
    where
        F: Future<Output = Result<PrimaryVersion, ConnectionError>>,
    {
        let ask = &ask;
        let mut asked: FuturesUnordered<_> = peers
            .iter()
            .enumerate()
            .map(|(place, peer)| async move { (place, ask(peer.clone()).await) })
            .collect();
        let (mut best, mut answered): (Option<PrimaryVersion>, usize) = (None, 0);
        let mut error = ConnectionError::NoMaster("no node is named".into());
        let mut until = Instant::now() + PEERS_MAX;
        loop {
            let next = tokio::select! {
                next = asked.next() => next,
                () = sleep_until(until) => break,
            };
            match next {
                None => break,
                Some((_, Err(why))) => error = why,
                Some((place, Ok(said))) => {
                    answered += usize::from(place < named);
                    if best.is_none() {
                        until = Instant::now() + OTHERS_MAX;
                    }
                    if best.as_ref().is_none_or(|best| best.epoch < said.epoch) {
                        best = Some(said);
                    }
                }
            }
        }
        let agrees = self.learn(best.ok_or(error)?, answered == named);
        let known = self.known.borrow().as_ref().map(|known| known.node.clone());
        known.filter(|_| agrees).ok_or_else(|| {
            ConnectionError::NoMaster("the peers that answer have not heard of the last failover yet".into())
        })
    }
}

/// Parses `+switch-master`: the name, then the old and the new address.
pub(crate) fn switch_of(message: &str) -> Option<(&str, Node, Node)> {
    let mut words = message.split(' ');
    let name = words.next()?;
    let mut node = || Some((words.next()?.to_owned(), words.next()?.parse().ok()?));
    Some((name, node()?, node()?))
}

/// A field of a flat list of names and values, as `SENTINEL MASTER` returns it.
pub(crate) fn field(answer: &Value, name: &str) -> Option<String> {
    if let Value::Map(pairs) = answer {
        let is_it = |key: &Value| redis::from_redis_value_ref::<String>(key).is_ok_and(|key| key == name);
        let (_, value) = pairs.iter().find(|(key, _)| is_it(key))?;
        return redis::from_redis_value_ref(value).ok();
    }
    let words: Vec<String> = redis::from_redis_value_ref(answer).ok()?;
    words.chunks_exact(2).find(|pair| pair[0] == name).map(|pair| pair[1].clone())
}

/// A node's configuration epoch in the reply of `CLUSTER NODES`.
pub(crate) fn epoch_in(nodes: &str, id: &str) -> Option<u64> {
    let line = nodes.lines().find(|line| line.split(' ').next() == Some(id))?;
    line.split(' ').nth(6)?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn known(port: u16, epoch: u64) -> PrimaryVersion {
        PrimaryVersion { node: ("h".into(), port), epoch }
    }

    #[test]
    fn a_peer_that_missed_a_failover_does_not_lead_back() {
        let primary = Primary::new();
        assert!(primary.learn(known(1, 5), false));
        primary.switched(&known(1, 0).node, known(2, 0).node);
        assert!(primary.is_superseded(Some(&known(1, 0).node)));
        assert!(!primary.learn(known(1, 5), false), "one of several sentinels that has old news");
        assert!(primary.learn(known(2, 6), false));
        // A late announcement of the previous failover.
        primary.switched(&known(1, 0).node, known(3, 0).node);
        assert!(!primary.is_superseded(Some(&known(2, 0).node)));
        assert!(primary.learn(PrimaryVersion { node: ("alias".into(), 2), epoch: 6 }, true));
        assert!(!primary.is_superseded(Some(&known(2, 0).node)), "the same node under another name");
        assert!(primary.learn(known(1, 0), true), "all of them were set up anew");
        assert!(!primary.is_superseded(None));
    }

    #[test]
    fn answers_of_peers_are_parsed() {
        let switch = switch_of("main 10.0.0.1 6379 10.0.0.2 6380");
        assert_eq!(switch, Some(("main", ("10.0.0.1".into(), 6379), ("10.0.0.2".into(), 6380))));
        assert_eq!(switch_of("main 10.0.0.1 x 10.0.0.2 6380"), None);
        let nodes =
            "abc 10.0.0.1:1@2 master - 0 1 7 connected 0-5\nabcd 10.0.0.2:1@2 slave abc 0 1 9 connected\n";
        assert_eq!((epoch_in(nodes, "abc"), epoch_in(nodes, "x")), (Some(7), None));
    }
}
