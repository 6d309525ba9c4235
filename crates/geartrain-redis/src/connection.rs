//! One connection to the node that the namespace is on, and how it is found.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use futures_util::StreamExt;
use geartrain_core::Clock as _;
use geartrain_core::wire::{BadWire, Request};
use redis::aio::MultiplexedConnection;
use redis::io::tcp::TcpSettings;
use redis::io::tcp::socket2::TcpKeepalive;
use redis::{
    AsyncConnectionConfig, Client, Cmd, ConnectionAddr, IntoConnectionInfo, ProtocolVersion, PushInfo,
    RedisConnectionInfo, RedisError, Value, cmd,
};
use tokio::sync::mpsc::UnboundedSender;
use tokio::time::timeout;

use crate::clock::SharedClock;
use crate::effect::Effect;
use crate::primary::{Known, Primary, epoch_in, field, switch_of};
use crate::script;
use crate::url::{Kind, Node, RedisUrl};

/// How long a node has to answer a call for a connection.
const CONNECT_MAX: Duration = Duration::from_secs(5);

/// How long finding the node and getting ready may take in all; less where patience is shorter, but not less
/// than this.
const OPEN_MAX: Duration = Duration::from_secs(10);
const OPEN_MIN: Duration = Duration::from_secs(1);

/// How long a node has to answer a PING over a connection of its own.
const PING_MAX: Duration = Duration::from_secs(2);

/// How long to wait before a sentinel is subscribed to again.
const SUBSCRIBE_AGAIN: Duration = Duration::from_secs(1);

/// How often a machine that says nothing is asked whether it is there, and how often in vain before it is not.
const PROBE: Duration = Duration::from_secs(5);
const PROBES: u32 = 3;

/// How many nodes of a Cluster are remembered besides those that the URL names.
const FOUND_MAX: usize = 16;

/// How long replicas have to confirm what was done, if patience lasts that long.
const REPLICAS_MAX: Duration = Duration::from_secs(5);

/// Why a call was not answered.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Trouble {
    /// The connection, or what came over it.
    #[error(transparent)]
    Redis(#[from] RedisError),
    /// Nobody knows which node to ask.
    #[error("no master: {0}")]
    NoMaster(String),
    /// Nothing was heard for so long.
    #[error("no answer within {0:?}")]
    Silent(Duration),
    /// Another node was promoted. What the old one answered does not count: the new one may not have it.
    #[error("{0} is no longer the master: a failover happened during the call")]
    Superseded(String),
    /// What came cannot be read.
    #[error(transparent)]
    Wire(#[from] BadWire),
    /// What came is not what was asked for.
    #[error("the answer makes no sense: {0}")]
    Nonsense(&'static str),
    /// It is done, but fewer replicas than asked for have it.
    #[error("it is done, but {confirmed} of {wanted} replicas confirmed it")]
    Replicas {
        /// How many have it.
        confirmed: u32,
        /// How many should.
        wanted: u32,
    },
    /// The backend was dropped.
    #[error("the connection was shut down")]
    Gone,
}

impl Trouble {
    /// Whether the same call may succeed on another connection.
    pub(crate) fn passes(&self) -> bool {
        match self {
            Trouble::Redis(error) => {
                error.is_io_error()
                    || error.is_connection_dropped()
                    || error.is_timeout()
                    || matches!(
                        error.code(),
                        Some(
                            "MOVED"
                                | "ASK"
                                | "READONLY"
                                | "LOADING"
                                | "CLUSTERDOWN"
                                | "MASTERDOWN"
                                | "TRYAGAIN"
                                | "BUSY"
                                | "NOREPLICAS"
                        )
                    )
            }
            Trouble::NoMaster(_) | Trouble::Silent(_) | Trouble::Superseded(_) => true,
            _ => false,
        }
    }
}

/// A request as it is sent.
pub(crate) struct Encoded {
    bytes: Vec<u8>,
    effect: Effect,
}

impl Encoded {
    pub(crate) fn of(request: &Request) -> Encoded {
        Encoded { bytes: request.encode(), effect: Effect::of(request) }
    }
}

/// How to get in: the URL, and what was found out on the way.
pub(crate) struct Door {
    pub(crate) url: RedisUrl,
    /// Whether the other side has functions. If not, the same text is a script.
    functions: AtomicBool,
    clock: Option<Arc<SharedClock>>,
    pub(crate) primary: Primary,
    /// Nodes of the Cluster that the URL does not name. They are asked too when those that it names may be
    /// gone.
    found: Mutex<Vec<Node>>,
}

impl Door {
    pub(crate) fn new(url: RedisUrl, clock: Option<Arc<SharedClock>>) -> Door {
        let found = Mutex::default();
        Door { url, functions: AtomicBool::new(true), clock, primary: Primary::new(), found }
    }

    /// The name of a key or a channel.
    pub(crate) fn key(&self, name: impl std::fmt::Display) -> String {
        format!("{}{name}", self.url.prefix)
    }

    /// Connects to the node that the namespace is on.
    pub(crate) async fn open(&self, pushes: Option<UnboundedSender<PushInfo>>) -> Result<Link, Trouble> {
        // A node that is stopped takes connections and then says nothing.
        let max = OPEN_MAX.min(self.url.patience.max(OPEN_MIN));
        timeout(max, self.find_and_open(pushes)).await.unwrap_or(Err(Trouble::Silent(max)))
    }

    async fn find_and_open(&self, pushes: Option<UnboundedSender<PushInfo>>) -> Result<Link, Trouble> {
        let node = self.find().await?;
        let address = match (&self.url.kind, &node) {
            (Kind::Unix(path), _) => ConnectionAddr::Unix(path.clone()),
            (Kind::Single(node), _) | (_, Some(node)) => self.address(node),
            (_, None) => return Err(Trouble::NoMaster("no node is named".into())),
        };
        let mut link = self.connect(address, pushes).await?;
        if let Some(node) = node {
            self.check_role(&mut link, &node).await?;
            link.node = Some(Arc::new(node));
        }
        if let Some(clock) = &self.clock {
            link.ask_the_time(clock).await?;
        }
        self.functions.store(self.has_functions(&mut link).await?, Ordering::Relaxed);
        Ok(link)
    }

    /// Which of several nodes is the primary; none where there is one only.
    async fn find(&self) -> Result<Option<Node>, Trouble> {
        match &self.url.kind {
            Kind::Single(_) | Kind::Unix(_) => Ok(None),
            Kind::Sentinel { sentinels, master } => {
                let ask = |sentinel| self.ask_sentinel(sentinel, master);
                self.primary.survey(sentinels, sentinels.len(), ask).await.map(Some)
            }
            Kind::Cluster(seeds) => {
                let mut peers = seeds.clone();
                peers.extend(self.found.lock().unwrap_or_else(PoisonError::into_inner).iter().cloned());
                self.primary.survey(&peers, seeds.len(), |peer| self.ask_node(peer)).await.map(Some)
            }
        }
    }

    /// Looks after a node that owes an answer: whether it answers a PING over another connection, and whether
    /// its peers say that another node has been promoted.
    pub(crate) async fn look_after(&self, link: &Link) -> bool {
        let ping = async {
            let pinged = timeout(PING_MAX, async {
                self.connect(link.address.clone(), None).await?.send(&cmd("PING")).await
            });
            // An error is an answer too: it loads its data, or a script keeps it busy.
            match pinged.await {
                Ok(Ok(_)) => true,
                Ok(Err(Trouble::Redis(error))) => error.code().is_some(),
                Ok(Err(_)) | Err(_) => false,
            }
        };
        let (answers, found) = tokio::join!(ping, timeout(PING_MAX, self.find()));
        if let Ok(Err(trouble)) = found {
            tracing::debug!(%trouble, "no peer says which node is the master");
        }
        answers
    }

    /// Subscribes to what a sentinel says of failovers, for as long as this is polled.
    pub(crate) async fn watch_sentinel(&self, sentinel: &Node, master: &str) {
        loop {
            if let Err(trouble) = self.hear_switches(sentinel, master).await {
                tracing::debug!(%trouble, host = sentinel.0, port = sentinel.1, "no word from a sentinel");
            }
            tokio::time::sleep(SUBSCRIBE_AGAIN).await;
        }
    }

    async fn hear_switches(&self, sentinel: &Node, master: &str) -> Result<(), Trouble> {
        let info = self.address(sentinel).into_connection_info()?.set_tcp_settings(tcp());
        let client = Client::open(info)?;
        let subscribing = async {
            let mut subscription = client.get_async_pubsub().await?;
            subscription.subscribe("+switch-master").await?;
            Ok::<_, RedisError>(subscription)
        };
        let too_long = |_| Trouble::Silent(CONNECT_MAX);
        let subscription = timeout(CONNECT_MAX, subscribing).await.map_err(too_long)??;
        // What was announced before this subscription began.
        let asked = timeout(CONNECT_MAX, self.ask_sentinel(sentinel.clone(), master)).await;
        self.primary.learn(asked.map_err(too_long)??, false);
        let mut messages = subscription.into_on_message();
        while let Some(message) = messages.next().await {
            let said: String = message.get_payload().map_err(|_| Trouble::Nonsense("a switch is a text"))?;
            if let Some((name, old, new)) = switch_of(&said)
                && name == master
            {
                self.primary.switched(&old, new);
            }
        }
        Ok(())
    }

    /// A node that is named as the primary may not know that it is: then it would refuse writes and answer
    /// reads with what is old. Where users may not ask for the role, that is found out by the first write.
    async fn check_role(&self, link: &mut Link, (host, port): &Node) -> Result<(), Trouble> {
        let role = match link.send(&cmd("ROLE")).await {
            Ok(Value::Array(role)) => role,
            Err(Trouble::Redis(error)) if error.code().is_none() => return Err(error.into()),
            Err(trouble @ Trouble::Silent(_)) => return Err(trouble),
            _ => return Ok(()),
        };
        match role.first().map(redis::from_redis_value_ref::<String>) {
            Some(Ok(role)) if role == "slave" => {
                Err(Trouble::NoMaster(format!("{host}:{port} is named, and is a replica still")))
            }
            _ => Ok(()),
        }
    }

    /// Whether the other side has functions. It is asked with a call that does nothing: one that it does not know it repeats in its error, and a request of ours is no
    /// text that could be read there.
    async fn has_functions(&self, link: &mut Link) -> Result<bool, Trouble> {
        match link.send(cmd("FCALL").arg(&script::library().name).arg(0)).await {
            Err(Trouble::Redis(error)) if error.code().is_some() => {
                Ok(!error.to_string().contains("unknown command"))
            }
            Err(trouble) => Err(trouble),
            Ok(_) => Ok(true),
        }
    }

    fn address(&self, (host, port): &Node) -> ConnectionAddr {
        if !self.url.encrypted {
            return ConnectionAddr::Tcp(host.clone(), *port);
        }
        // If the program has chosen another one already, that is as good.
        let _ = rustls::crypto::ring::default_provider().install_default();
        ConnectionAddr::TcpTls { host: host.clone(), port: *port, insecure: false, tls_params: None }
    }

    async fn connect(
        &self,
        address: ConnectionAddr,
        pushes: Option<UnboundedSender<PushInfo>>,
    ) -> Result<Link, Trouble> {
        let mut login = RedisConnectionInfo::default().set_db(self.url.database);
        if let Some(user) = &self.url.user {
            login = login.set_username(user);
        }
        if let Some(password) = &self.url.password {
            login = login.set_password(password);
        }
        Link::to(address, login, pushes).await
    }

    /// Which node is the master as far as a sentinel knows, and since which epoch.
    async fn ask_sentinel(&self, sentinel: Node, master: &str) -> Result<Known, Trouble> {
        // The user and password of the URL are the Redis's.
        let mut link = Link::to(self.address(&sentinel), RedisConnectionInfo::default(), None).await?;
        let named = link.send(cmd("SENTINEL").arg("GET-MASTER-ADDR-BY-NAME").arg(master)).await?;
        let node = match redis::from_redis_value::<Option<Node>>(named) {
            Ok(Some(node)) => node,
            _ => return Err(Trouble::NoMaster(format!("the sentinels know none that is called {master}"))),
        };
        let state = link.send(cmd("SENTINEL").arg("MASTER").arg(master)).await?;
        let epoch = field(&state, "config-epoch").and_then(|epoch| epoch.parse().ok());
        Ok(Known { node, epoch: epoch.unwrap_or(0) })
    }

    /// Which node has the slot that the prefix is in as far as a node of the Cluster knows, and since which
    /// epoch.
    async fn ask_node(&self, seed: Node) -> Result<Known, Trouble> {
        let mut link = self.connect(self.address(&seed), None).await?;
        let slot = link.send(cmd("CLUSTER").arg("KEYSLOT").arg(self.url.prefix.as_str())).await?;
        let slot: i64 = redis::from_redis_value(slot).map_err(|_| Trouble::Nonsense("a slot is a number"))?;
        let slots = link.send(cmd("CLUSTER").arg("SLOTS")).await?;
        let ranges: Vec<Vec<Value>> =
            redis::from_redis_value(slots).map_err(|_| Trouble::Nonsense("slots are a list of ranges"))?;
        let nodes = link.send(cmd("CLUSTER").arg("NODES")).await?;
        let nodes: String =
            redis::from_redis_value(nodes).map_err(|_| Trouble::Nonsense("nodes are a text"))?;
        let address = |node: &Value| {
            let Value::Array(node) = node else { return None };
            let host: Option<String> = node.first().and_then(|host| redis::from_redis_value_ref(host).ok());
            let port = node.get(1).and_then(|port| redis::from_redis_value_ref(port).ok());
            // A node that does not know its own name is the one that was asked.
            let host = host.filter(|host| !host.is_empty()).unwrap_or_else(|| seed.0.clone());
            Some((host, port.unwrap_or(seed.1)))
        };
        self.remember(ranges.iter().flat_map(|range| range.iter().skip(2)).filter_map(address));
        for range in ranges {
            let [first, last, master, ..] = &range[..] else { continue };
            let within = |bound: &Value| match bound {
                Value::Int(number) => *number,
                _ => -1,
            };
            if (within(first)..=within(last)).contains(&slot)
                && let Some(node) = address(master)
            {
                let Value::Array(master) = master else { continue };
                let id: Option<String> = master.get(2).and_then(|id| redis::from_redis_value_ref(id).ok());
                let epoch = id.and_then(|id| epoch_in(&nodes, &id)).unwrap_or(0);
                return Ok(Known { node, epoch });
            }
        }
        Err(Trouble::NoMaster(format!("no node of the Cluster has slot {slot}")))
    }

    /// Remembers nodes of the Cluster that the URL does not name.
    fn remember(&self, nodes: impl Iterator<Item = Node>) {
        let Kind::Cluster(seeds) = &self.url.kind else { return };
        let mut found = self.found.lock().unwrap_or_else(PoisonError::into_inner);
        for node in nodes {
            if found.len() < FOUND_MAX && !seeds.contains(&node) && !found.contains(&node) {
                found.push(node);
            }
        }
    }

    /// Whether the other side is a geartrain server, which nobody shares with foreign scripts.
    pub(crate) async fn is_geartrain(&self, link: &mut Link) -> Result<bool, Trouble> {
        let info = link.send(cmd("INFO").arg("server")).await?;
        let info: String = redis::from_redis_value(info).map_err(|_| Trouble::Nonsense("INFO is a text"))?;
        Ok(info.contains("geartrain_version:"))
    }

    /// Sends a request of ours, and reads what comes back. If our library is not there, it is loaded first.
    pub(crate) async fn ask(
        &self,
        link: &mut Link,
        request: &Encoded,
        patience: Duration,
    ) -> Result<Vec<u8>, Trouble> {
        let (begun, mut effect) = (Instant::now(), request.effect);
        loop {
            let functions = self.functions.load(Ordering::Relaxed);
            let library = script::library();
            let (how, name) = match (functions, effect) {
                (false, _) => ("EVALSHA", &script::script().sha),
                (true, Effect::Any) => ("FCALL", &library.name),
                (true, Effect::Frees) => ("FCALL", &library.frees),
                (true, Effect::Reads) => ("FCALL", &library.reads),
            };
            let bytes = &request.bytes[..];
            let call = cmd(how).arg(name).arg(1).arg(self.url.prefix.as_str()).arg(bytes).take();
            let answered = link.send(&call).await;
            let error = match answered {
                Ok(Value::BulkString(bytes)) => {
                    self.replicate(link, patience.saturating_sub(begun.elapsed())).await?;
                    return Ok(bytes);
                }
                // A script that would join the pieces of a batch's answer would do so for longer than for what it was asked.
                Ok(Value::Array(pieces)) => {
                    self.replicate(link, patience.saturating_sub(begun.elapsed())).await?;
                    return joined(&pieces);
                }
                Ok(_) => return Err(Trouble::Nonsense("the answer to our own call is a text")),
                Err(Trouble::Redis(error)) => error,
                Err(trouble) => return Err(trouble),
            };
            let said = error.to_string();
            if error.code() == Some("NOSCRIPT") {
                link.send(cmd("SCRIPT").arg("LOAD").arg(&script::script().text)).await?;
            } else if functions && said.contains("Function not found") {
                link.send(cmd("FUNCTION").arg("LOAD").arg("REPLACE").arg(&library.text)).await?;
            } else if effect == Effect::Reads && said.contains("not allowed from read-only script") {
                // Something fell due that even a look must move first.
                effect = Effect::Frees;
            } else {
                return Err(error.into());
            }
        }
    }

    async fn replicate(&self, link: &mut Link, patience: Duration) -> Result<(), Trouble> {
        let wanted = self.url.replicas;
        if wanted == 0 {
            return Ok(());
        }
        // Not 0, which would be for ever.
        let wait = patience.min(REPLICAS_MAX).as_millis().max(1) as u64;
        let confirmed = link.send(cmd("WAIT").arg(wanted).arg(wait)).await?;
        let confirmed =
            redis::from_redis_value(confirmed).map_err(|_| Trouble::Nonsense("replicas are a number"))?;
        if confirmed < wanted { Err(Trouble::Replicas { confirmed, wanted }) } else { Ok(()) }
    }
}

/// Requests leave when they are whole, and a machine that is gone is noticed although nothing is sent to it.
fn tcp() -> TcpSettings {
    let keepalive = TcpKeepalive::new().with_time(PROBE).with_interval(PROBE).with_retries(PROBES);
    let settings = TcpSettings::default().set_nodelay(true).set_keepalive(keepalive);
    // Probes are only sent over a connection that is idle: for one with a request under way the system would try for a quarter of an hour.
    #[cfg(target_os = "linux")]
    let settings = settings.set_user_timeout(PROBE * (PROBES + 1));
    settings
}

/// A connection. Clones share it, and calls over it do not wait for each other.
#[derive(Clone)]
pub(crate) struct Link {
    connection: MultiplexedConnection,
    pub(crate) address: ConnectionAddr,
    /// Which of several nodes it is to, where there are several.
    pub(crate) node: Option<Arc<Node>>,
}

impl Link {
    async fn to(
        address: ConnectionAddr,
        login: RedisConnectionInfo,
        pushes: Option<UnboundedSender<PushInfo>>,
    ) -> Result<Link, Trouble> {
        let protocol = if pushes.is_some() { ProtocolVersion::RESP3 } else { ProtocolVersion::RESP2 };
        let info = address.clone().into_connection_info()?.set_redis_settings(login.set_protocol(protocol));
        let info = info.set_tcp_settings(tcp());
        // No timeout for answers: a batch may wait for a slow disk. Whether the node is still there is looked
        // after meanwhile.
        let mut config =
            AsyncConnectionConfig::new().set_connection_timeout(Some(CONNECT_MAX)).set_response_timeout(None);
        if let Some(pushes) = pushes {
            config = config.set_push_sender(pushes);
        }
        let client = Client::open(info)?;
        let opening = client.get_multiplexed_async_connection_with_config(&config);
        let too_long = |_| Trouble::NoMaster("a node took a connection and then said nothing".into());
        let connection = timeout(CONNECT_MAX, opening).await.map_err(too_long)??;
        Ok(Link { connection, address, node: None })
    }

    pub(crate) async fn send(&mut self, command: &Cmd) -> Result<Value, Trouble> {
        match self.connection.send_packed_command(command).await? {
            Value::ServerError(error) => Err(RedisError::from(error).into()),
            value => Ok(value),
        }
    }

    /// Asks what time it is there, and takes the quickest of three answers for it.
    pub(crate) async fn ask_the_time(&mut self, clock: &SharedClock) -> Result<(), Trouble> {
        let mut best = (f64::INFINITY, 0.0, 0.0);
        for _ in 0..3 {
            let before = clock.elapsed().get();
            let answer = self.send(&cmd("TIME")).await?;
            let after = clock.elapsed().get();
            let (seconds, micros): (f64, f64) =
                redis::from_redis_value(answer).map_err(|_| Trouble::Nonsense("TIME is two numbers"))?;
            if after - before < best.0 {
                best = (after - before, seconds + micros / 1e6, (before + after) / 2.0);
            }
        }
        clock.follow(best.1, best.2);
        Ok(())
    }
}

/// An answer that came in pieces.
fn joined(pieces: &[Value]) -> Result<Vec<u8>, Trouble> {
    let mut all = Vec::new();
    for piece in pieces {
        match piece {
            Value::BulkString(bytes) => all.extend_from_slice(bytes),
            _ => return Err(Trouble::Nonsense("the answer to our own call is text")),
        }
    }
    Ok(all)
}
