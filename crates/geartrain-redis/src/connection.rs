//! Connections to the primary of a queue's namespace: finding it through Sentinel or Cluster, opening,
//! calling.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use futures_util::StreamExt;
use geartrain_core::wire::{BadWire, Request};
use geartrain_core::{Clock as _, Software};
use parking_lot::Mutex;
use redis::aio::MultiplexedConnection;
use redis::io::tcp::TcpSettings;
use redis::io::tcp::socket2::TcpKeepalive;
use redis::{
    AsyncConnectionConfig, Client, Cmd, ConnectionAddr, ErrorKind, IntoConnectionInfo, ProtocolVersion,
    PushInfo, RedisConnectionInfo, RedisError, Value, cmd,
};
use tokio::sync::mpsc::UnboundedSender;
use tokio::time::timeout;

use crate::clock::SharedClock;
use crate::effect::Effect;
use crate::primary::{Primary, PrimaryVersion, epoch_in, field, switch_of};
use crate::script;
use crate::tls_files;
use crate::url::{Kind, Node, RedisUrl};

/// How long a node may take to accept a connection.
const CONNECT_MAX: Duration = Duration::from_secs(5);

/// How long finding and opening may take in total. A shorter `patience=` shortens it, down to the minimum.
const OPEN_MAX: Duration = Duration::from_secs(10);
const OPEN_MIN: Duration = Duration::from_secs(1);

/// How long a node may take to answer a PING over a connection of its own.
const PING_MAX: Duration = Duration::from_secs(2);

/// Pause before a lost subscription to a sentinel is opened again.
const SENTINEL_RETRY: Duration = Duration::from_secs(1);

/// TCP keepalive: the interval of probes, and how many may be lost.
const KEEPALIVE_INTERVAL: Duration = Duration::from_secs(5);
const KEEPALIVE_PROBES: u32 = 3;

/// How many nodes of a Cluster are remembered besides those in the URL.
const DISCOVERED_NODES_MAX: usize = 16;

/// The name of our own server.
const GEARTRAIN: &str = "geartrain";

/// How long replicas may take to confirm a write, if `patience=` allows it.
const REPLICATION_WAIT_MAX: Duration = Duration::from_secs(5);

/// Why a call has no valid reply.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ConnectionError {
    /// An error of the connection, or one that the Redis returned.
    #[error("{}", plain_text(.0))]
    Redis(RedisError),
    /// The sentinels or Cluster nodes do not say which node to call.
    #[error("no master: {0}")]
    NoMaster(String),
    /// The node did not reply in time.
    #[error("no answer within {0:?}")]
    Timeout(Duration),
    /// Another node was promoted during the call. The old one's reply is rejected: the new one may lack the
    /// write.
    #[error("{0} is no longer the master: a failover happened during the call")]
    Superseded(String),
    /// The reply cannot be decoded.
    #[error(transparent)]
    Wire(#[from] BadWire),
    /// The reply is not of the expected kind.
    #[error("unexpected reply: {0}")]
    InvalidReply(&'static str),
    /// Executed, but confirmed by too few replicas.
    #[error("executed, but only {confirmed} of {wanted} replicas confirmed it")]
    TooFewReplicas {
        /// Replicas that confirmed.
        confirmed: u32,
        /// Replicas that `replicas=` asks for.
        wanted: u32,
    },
    /// A file that the URL names for TLS cannot be used.
    #[error("cannot use {what} {file}: {why}")]
    TlsFile {
        /// What the file is for.
        what: &'static str,
        /// The path.
        file: String,
        /// What is wrong with it.
        why: String,
    },
    /// The backend was dropped.
    #[error("the connection was shut down")]
    ShutDown,
}

impl From<RedisError> for ConnectionError {
    fn from(error: RedisError) -> ConnectionError {
        ConnectionError::Redis(error)
    }
}

/// The text of an error without the words of the library, and without those that the error around it says.
fn plain_text(error: &RedisError) -> String {
    match (error.code(), error.detail()) {
        // From a geartrain server, whose own backend cannot answer.
        (Some("ERR"), Some(detail)) => match detail.split_once(" backend cannot answer: ") {
            Some((backend, cause)) if backend.ends_with("redis") => format!("the Redis behind it: {cause}"),
            Some((_, cause)) => cause.to_owned(),
            None => detail.to_owned(),
        },
        (Some(code), Some(detail)) => format!("{code} {detail}"),
        _ if error.kind() == ErrorKind::AuthenticationFailed => "the password was refused".to_owned(),
        _ => match error.to_string() {
            text if text.contains("Parse error") => "its reply is not RESP".to_owned(),
            text => text,
        },
    }
}

impl ConnectionError {
    /// Whether a geartrain server could not read the request, and so did nothing.
    pub(crate) fn is_unreadable_request(&self) -> bool {
        let ConnectionError::Redis(error) = self else { return false };
        error.detail().is_some_and(|detail| detail.contains("what came cannot be read"))
    }

    /// Whether a retry on another connection may succeed.
    pub fn is_transient(&self) -> bool {
        match self {
            ConnectionError::Redis(error) => {
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
            ConnectionError::NoMaster(_) | ConnectionError::Timeout(_) | ConnectionError::Superseded(_) => {
                true
            }
            _ => false,
        }
    }
}

/// How many receivers a published message had.
pub(crate) fn receivers(reply: Value) -> Result<u64, ConnectionError> {
    match reply {
        Value::Int(count) => Ok(u64::try_from(count).unwrap_or_default()),
        _ => Err(ConnectionError::InvalidReply("expected a number of receivers")),
    }
}

pub(crate) struct EncodedRequest {
    bytes: Vec<u8>,
    effect: Effect,
}

impl EncodedRequest {
    pub(crate) fn new(request: &Request) -> EncodedRequest {
        EncodedRequest { bytes: request.encode(), effect: Effect::of(request) }
    }
}

/// Opens connections: the URL, and what was learned about its nodes.
pub(crate) struct Connector {
    pub(crate) url: RedisUrl,
    /// Whether the Redis has functions. If not, the library is sent as a script.
    functions: AtomicBool,
    clock: Option<Arc<SharedClock>>,
    pub(crate) primary: Primary,
    /// Cluster nodes that the URL does not name; asked as well when the named ones may be gone.
    discovered: Mutex<Vec<Node>>,
}

impl Connector {
    pub(crate) fn new(url: RedisUrl, clock: Option<Arc<SharedClock>>) -> Connector {
        let discovered = Mutex::default();
        Connector { url, functions: AtomicBool::new(true), clock, primary: Primary::new(), discovered }
    }

    /// A key or channel with the prefix.
    pub(crate) fn key(&self, name: impl std::fmt::Display) -> String {
        format!("{}{name}", self.url.prefix)
    }

    /// The command that publishes a client's message.
    pub(crate) fn publish(&self, channel: &[u8], message: &[u8]) -> Cmd {
        let channel = [self.url.prefix.as_bytes(), channel].concat();
        cmd("PUBLISH").arg(channel).arg(message).take()
    }

    /// Connects to the primary.
    pub(crate) async fn open(
        &self,
        pushes: Option<UnboundedSender<PushInfo>>,
    ) -> Result<Connection, ConnectionError> {
        // A stopped process (SIGSTOP) accepts connections and never replies.
        let max = OPEN_MAX.min(self.url.patience.max(OPEN_MIN));
        timeout(max, self.find_and_open(pushes)).await.unwrap_or(Err(ConnectionError::Timeout(max)))
    }

    async fn find_and_open(
        &self,
        pushes: Option<UnboundedSender<PushInfo>>,
    ) -> Result<Connection, ConnectionError> {
        let node = self.find().await?;
        let address = match (&self.url.kind, &node) {
            (Kind::Unix(path), _) => ConnectionAddr::Unix(path.clone()),
            (Kind::Single(node), _) | (_, Some(node)) => self.address(node)?,
            (_, None) => return Err(ConnectionError::NoMaster("no node is named".into())),
        };
        let mut connection = self.connect(address, pushes).await?;
        if let Some(node) = node {
            self.check_role(&mut connection, &node).await?;
            connection.node = Some(Arc::new(node));
        }
        if let Some(clock) = &self.clock {
            connection.sync_clock(clock).await?;
        }
        self.functions.store(self.has_functions(&mut connection).await?, Ordering::Relaxed);
        Ok(connection)
    }

    /// The primary among several nodes; None for a URL with a single one.
    async fn find(&self) -> Result<Option<Node>, ConnectionError> {
        match &self.url.kind {
            Kind::Single(_) | Kind::Unix(_) => Ok(None),
            Kind::Sentinel { sentinels, master } => {
                let ask = |sentinel| self.ask_sentinel(sentinel, master);
                self.primary.survey(sentinels, sentinels.len(), ask).await.map(Some)
            }
            Kind::Cluster(seeds) => {
                let mut peers = seeds.clone();
                peers.extend(self.discovered.lock().iter().cloned());
                self.primary.survey(&peers, seeds.len(), |peer| self.ask_node(peer)).await.map(Some)
            }
        }
    }

    /// Probes a node that owes a reply: whether it answers a PING over another connection, and whether its
    /// peers have promoted another node.
    pub(crate) async fn probe(&self, connection: &Connection) -> bool {
        let ping = async {
            let pinged = timeout(PING_MAX, async {
                self.connect(connection.address.clone(), None).await?.send(&cmd("PING")).await
            });
            // An error is an answer as well: the node is loading its data, or busy with a script.
            match pinged.await {
                Ok(Ok(_)) => true,
                Ok(Err(ConnectionError::Redis(error))) => error.code().is_some(),
                Ok(Err(_)) | Err(_) => false,
            }
        };
        let (answers, found) = tokio::join!(ping, timeout(PING_MAX, self.find()));
        if let Ok(Err(error)) = found {
            tracing::debug!(%error, "cannot find the primary");
        }
        answers
    }

    /// Follows the failovers that a sentinel announces, for as long as this is polled.
    pub(crate) async fn watch_sentinel(&self, sentinel: &Node, master: &str) {
        loop {
            if let Err(error) = self.follow_switches(sentinel, master).await {
                tracing::debug!(%error, host = sentinel.0, port = sentinel.1, "cannot follow a sentinel");
            }
            tokio::time::sleep(SENTINEL_RETRY).await;
        }
    }

    async fn follow_switches(&self, sentinel: &Node, master: &str) -> Result<(), ConnectionError> {
        let info = self.address(sentinel)?.into_connection_info()?.set_tcp_settings(tcp());
        let client = Client::open(info)?;
        let subscribing = async {
            let mut subscription = client.get_async_pubsub().await?;
            subscription.subscribe("+switch-master").await?;
            Ok::<_, RedisError>(subscription)
        };
        let too_long = |_| ConnectionError::Timeout(CONNECT_MAX);
        let subscription = timeout(CONNECT_MAX, subscribing).await.map_err(too_long)??;
        // Covers failovers from before the subscription.
        let asked = timeout(CONNECT_MAX, self.ask_sentinel(sentinel.clone(), master)).await;
        self.primary.learn(asked.map_err(too_long)??, false);
        let mut messages = subscription.into_on_message();
        while let Some(message) = messages.next().await {
            let said: String = message
                .get_payload()
                .map_err(|_| ConnectionError::InvalidReply("expected +switch-master as text"))?;
            if let Some((name, old, new)) = switch_of(&said)
                && name == master
            {
                self.primary.switched(&old, new);
            }
        }
        Ok(())
    }

    /// A node that peers name as the primary may not know it yet: it would refuse writes and serve stale
    /// reads. If the user may not call ROLE, the first write finds out.
    async fn check_role(
        &self,
        connection: &mut Connection,
        (host, port): &Node,
    ) -> Result<(), ConnectionError> {
        let role = match connection.send(&cmd("ROLE")).await {
            Ok(Value::Array(role)) => role,
            Err(ConnectionError::Redis(error)) if error.code().is_none() => return Err(error.into()),
            Err(error @ ConnectionError::Timeout(_)) => return Err(error),
            _ => return Ok(()),
        };
        match role.first().map(redis::from_redis_value_ref::<String>) {
            Some(Ok(role)) if role == "slave" => {
                Err(ConnectionError::NoMaster(format!("{host}:{port} was promoted but is still a replica")))
            }
            _ => Ok(()),
        }
    }

    /// Whether the Redis has functions. Asked with an empty call: a Redis without FCALL repeats the unknown
    /// command in its error, and a real request is binary.
    async fn has_functions(&self, connection: &mut Connection) -> Result<bool, ConnectionError> {
        match connection.send(cmd("FCALL").arg(&script::library().name).arg(0)).await {
            Err(ConnectionError::Redis(error)) if error.code().is_some() => {
                Ok(!error.to_string().contains("unknown command"))
            }
            Err(error) => Err(error),
            Ok(_) => Ok(true),
        }
    }

    fn address(&self, (host, port): &Node) -> Result<ConnectionAddr, ConnectionError> {
        if !self.url.encrypted {
            return Ok(ConnectionAddr::Tcp(host.clone(), *port));
        }
        // Fails if the program has installed another provider, which is fine.
        let _ = rustls::crypto::ring::default_provider().install_default();
        // The files are read for each connection, so that renewed ones are used without a restart.
        let certificates = tls_files::read(&self.url.tls_files)?;
        let address =
            ConnectionAddr::TcpTls { host: host.clone(), port: *port, insecure: false, tls_params: None };
        let client = Client::build_with_tls(address, certificates)?;
        Ok(client.get_connection_info().addr().clone())
    }

    async fn connect(
        &self,
        address: ConnectionAddr,
        pushes: Option<UnboundedSender<PushInfo>>,
    ) -> Result<Connection, ConnectionError> {
        let mut login = RedisConnectionInfo::default().set_db(self.url.database);
        if let Some(user) = &self.url.user {
            login = login.set_username(user);
        }
        if let Some(password) = &self.url.password {
            login = login.set_password(password);
        }
        Connection::open(address, login, pushes).await
    }

    /// The primary as a sentinel knows it, with its configuration epoch.
    async fn ask_sentinel(&self, sentinel: Node, master: &str) -> Result<PrimaryVersion, ConnectionError> {
        // User and password in the URL are for the Redis, not for sentinels.
        let mut connection =
            Connection::open(self.address(&sentinel)?, RedisConnectionInfo::default(), None).await?;
        let named = connection.send(cmd("SENTINEL").arg("GET-MASTER-ADDR-BY-NAME").arg(master)).await?;
        let node = match redis::from_redis_value::<Option<Node>>(named) {
            Ok(Some(node)) => node,
            _ => {
                return Err(ConnectionError::NoMaster(format!(
                    "the sentinels know no master named {master}"
                )));
            }
        };
        let state = connection.send(cmd("SENTINEL").arg("MASTER").arg(master)).await?;
        let epoch = field(&state, "config-epoch").and_then(|epoch| epoch.parse().ok());
        Ok(PrimaryVersion { node, epoch: epoch.unwrap_or(0) })
    }

    /// The owner of the prefix's slot as a Cluster node knows it, with its configuration epoch.
    async fn ask_node(&self, seed: Node) -> Result<PrimaryVersion, ConnectionError> {
        let mut connection = self.connect(self.address(&seed)?, None).await?;
        let slot = connection.send(cmd("CLUSTER").arg("KEYSLOT").arg(self.url.prefix.as_str())).await?;
        let slot: i64 = redis::from_redis_value(slot)
            .map_err(|_| ConnectionError::InvalidReply("expected a slot number"))?;
        let slots = connection.send(cmd("CLUSTER").arg("SLOTS")).await?;
        let ranges: Vec<Vec<Value>> = redis::from_redis_value(slots)
            .map_err(|_| ConnectionError::InvalidReply("expected slot ranges"))?;
        let nodes = connection.send(cmd("CLUSTER").arg("NODES")).await?;
        let nodes: String = redis::from_redis_value(nodes)
            .map_err(|_| ConnectionError::InvalidReply("expected CLUSTER NODES as text"))?;
        let address = |node: &Value| {
            let Value::Array(node) = node else { return None };
            let host: Option<String> = node.first().and_then(|host| redis::from_redis_value_ref(host).ok());
            let port = node.get(1).and_then(|port| redis::from_redis_value_ref(port).ok());
            // A node that does not know its own host is the one that was asked.
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
                return Ok(PrimaryVersion { node, epoch });
            }
        }
        Err(ConnectionError::NoMaster(format!("no node of the Cluster has slot {slot}")))
    }

    fn remember(&self, nodes: impl Iterator<Item = Node>) {
        let Kind::Cluster(seeds) = &self.url.kind else { return };
        let mut found = self.discovered.lock();
        for node in nodes {
            if found.len() < DISCOVERED_NODES_MAX && !seeds.contains(&node) && !found.contains(&node) {
                found.push(node);
            }
        }
    }

    /// Whether the other side is a geartrain server, where no foreign scripts run.
    pub(crate) async fn is_geartrain(&self, connection: &mut Connection) -> Result<bool, ConnectionError> {
        Ok(self.software(connection).await?.name == GEARTRAIN)
    }

    /// Asks the other side what it is. Valkey and a geartrain server tell a Redis version too.
    pub(crate) async fn software(&self, connection: &mut Connection) -> Result<Software, ConnectionError> {
        let info = connection.send(cmd("INFO").arg("server")).await?;
        let info: String = redis::from_redis_value(info)
            .map_err(|_| ConnectionError::InvalidReply("expected INFO as text"))?;
        let version = |field: &str| {
            let value = |line: &str| Some(line.strip_prefix(field)?.strip_prefix(':')?.trim().to_owned());
            info.lines().find_map(value)
        };
        let known =
            [(GEARTRAIN, "geartrain_version"), ("Valkey", "valkey_version"), ("Redis", "redis_version")];
        let found = known.into_iter().find_map(|(name, field)| Some((name, version(field)?)));
        let (name, version) = found.map_or(("Redis", None), |(name, version)| (name, Some(version)));
        Ok(Software { name: name.to_owned(), version })
    }

    /// When the other side syncs changes to disk, if it tells: a geartrain server in its INFO, a Redis in its
    /// configuration, which not every user may read.
    pub(crate) async fn sync_mode(
        &self,
        connection: &mut Connection,
    ) -> Result<Option<String>, ConnectionError> {
        let info: String = redis::from_redis_value(connection.send(cmd("INFO").arg("server")).await?)
            .map_err(|_| ConnectionError::InvalidReply("expected INFO as text"))?;
        if let Some(mode) = info.lines().find_map(|line| line.strip_prefix("geartrain_sync:")) {
            return Ok(Some(mode.to_owned()));
        }
        if info.contains("geartrain_version:") {
            return Ok(None);
        }
        let mut option = async |name: &str| -> Result<Option<String>, ConnectionError> {
            match connection.send(cmd("CONFIG").arg("GET").arg(name)).await {
                Ok(reply) => Ok(field(&reply, name)),
                Err(ConnectionError::Redis(error)) if error.code().is_some() => Ok(None),
                Err(error) => Err(error),
            }
        };
        Ok(match option("appendonly").await?.as_deref() {
            Some("yes") => option("appendfsync").await?,
            Some(_) => Some("never".to_owned()),
            None => None,
        })
    }

    /// Sends a request and returns the reply. Loads our library first if the Redis does not have it.
    pub(crate) async fn ask(
        &self,
        connection: &mut Connection,
        request: &EncodedRequest,
        patience: Duration,
    ) -> Result<Vec<u8>, ConnectionError> {
        let (begun, mut effect) = (Instant::now(), request.effect);
        loop {
            let functions = self.functions.load(Ordering::Relaxed);
            let library = script::library();
            let (verb, name) = match (functions, effect) {
                (false, _) => ("EVALSHA", &script::script().sha),
                (true, Effect::Any) => ("FCALL", &library.name),
                (true, Effect::Frees) => ("FCALL", &library.frees),
                (true, Effect::Reads) => ("FCALL", &library.reads),
            };
            let bytes = &request.bytes[..];
            let call = cmd(verb).arg(name).arg(1).arg(self.url.prefix.as_str()).arg(bytes).take();
            let answered = connection.send(&call).await;
            let error = match answered {
                Ok(Value::BulkString(bytes)) => {
                    self.replicate(connection, patience.saturating_sub(begun.elapsed())).await?;
                    return Ok(bytes);
                }
                // Replies to batches come in pieces: joining them in Lua would take longer than the commands.
                Ok(Value::Array(pieces)) => {
                    self.replicate(connection, patience.saturating_sub(begun.elapsed())).await?;
                    return concatenate(&pieces);
                }
                Ok(_) => return Err(ConnectionError::InvalidReply("expected bytes from our function")),
                Err(ConnectionError::Redis(error)) => error,
                Err(error) => return Err(error),
            };
            let said = error.to_string();
            if error.code() == Some("NOSCRIPT") {
                connection.send(cmd("SCRIPT").arg("LOAD").arg(&script::script().text)).await?;
            } else if functions && said.contains("Function not found") {
                connection.send(cmd("FUNCTION").arg("LOAD").arg("REPLACE").arg(&library.text)).await?;
            } else if effect == Effect::Reads && said.contains("not allowed from read-only script") {
                // A job fell due, and even a read must move it first.
                effect = Effect::Frees;
            } else {
                return Err(error.into());
            }
        }
    }

    async fn replicate(
        &self,
        connection: &mut Connection,
        patience: Duration,
    ) -> Result<(), ConnectionError> {
        let wanted = self.url.replicas;
        if wanted == 0 {
            return Ok(());
        }
        // Not 0, which means without limit.
        let wait = patience.min(REPLICATION_WAIT_MAX).as_millis().max(1) as u64;
        let confirmed = connection.send(cmd("WAIT").arg(wanted).arg(wait)).await?;
        let confirmed = redis::from_redis_value(confirmed)
            .map_err(|_| ConnectionError::InvalidReply("expected a number of replicas"))?;
        if confirmed < wanted { Err(ConnectionError::TooFewReplicas { confirmed, wanted }) } else { Ok(()) }
    }
}

/// No Nagle delay, and keepalive probes that notice a dead machine on an idle connection.
fn tcp() -> TcpSettings {
    let keepalive = TcpKeepalive::new()
        .with_time(KEEPALIVE_INTERVAL)
        .with_interval(KEEPALIVE_INTERVAL)
        .with_retries(KEEPALIVE_PROBES);
    let settings = TcpSettings::default().set_nodelay(true).set_keepalive(keepalive);
    // Keepalive only probes an idle connection: with a request in flight the kernel would retransmit for 15
    // minutes.
    #[cfg(target_os = "linux")]
    let settings = settings.set_user_timeout(KEEPALIVE_INTERVAL * (KEEPALIVE_PROBES + 1));
    settings
}

/// A multiplexed connection: clones share it, and calls are pipelined.
#[derive(Clone)]
pub(crate) struct Connection {
    multiplexed: MultiplexedConnection,
    pub(crate) address: ConnectionAddr,
    /// The node, where the URL names several.
    pub(crate) node: Option<Arc<Node>>,
}

impl Connection {
    async fn open(
        address: ConnectionAddr,
        login: RedisConnectionInfo,
        pushes: Option<UnboundedSender<PushInfo>>,
    ) -> Result<Connection, ConnectionError> {
        let protocol = if pushes.is_some() { ProtocolVersion::RESP3 } else { ProtocolVersion::RESP2 };
        let info = address.clone().into_connection_info()?.set_redis_settings(login.set_protocol(protocol));
        let info = info.set_tcp_settings(tcp());
        // No timeout for replies: a batch may wait for a slow disk. `Shared::await_reply` probes the node
        // meanwhile.
        let mut config =
            AsyncConnectionConfig::new().set_connection_timeout(Some(CONNECT_MAX)).set_response_timeout(None);
        if let Some(pushes) = pushes {
            config = config.set_push_sender(pushes);
        }
        let client = Client::open(info)?;
        let opening = client.get_multiplexed_async_connection_with_config(&config);
        let too_long =
            |_| ConnectionError::NoMaster("a node accepted the connection and did not reply".into());
        let multiplexed = timeout(CONNECT_MAX, opening).await.map_err(too_long)??;
        Ok(Connection { multiplexed, address, node: None })
    }

    pub(crate) async fn send(&mut self, command: &Cmd) -> Result<Value, ConnectionError> {
        match self.multiplexed.send_packed_command(command).await? {
            Value::ServerError(error) => Err(RedisError::from(error).into()),
            value => Ok(value),
        }
    }

    /// Subscribes to channels. Each is confirmed on its own, and all confirmations are awaited: a later one would
    /// be taken for the reply to the next command.
    pub(crate) async fn subscribe(&mut self, channels: &[String]) -> Result<(), ConnectionError> {
        Ok(self.multiplexed.subscribe(channels).await?)
    }

    /// Subscribes to all channels whose names match a pattern.
    pub(crate) async fn subscribe_to_pattern(&mut self, pattern: &str) -> Result<(), ConnectionError> {
        Ok(self.multiplexed.psubscribe(pattern).await?)
    }

    /// Ends subscriptions, and awaits all confirmations.
    pub(crate) async fn unsubscribe(&mut self, channels: &[String]) -> Result<(), ConnectionError> {
        Ok(self.multiplexed.unsubscribe(channels).await?)
    }

    /// Sets the clock by the Redis's TIME, from the fastest of three round trips.
    pub(crate) async fn sync_clock(&mut self, clock: &SharedClock) -> Result<(), ConnectionError> {
        let mut best = (f64::INFINITY, 0.0, 0.0);
        for _ in 0..3 {
            let before = clock.elapsed().get();
            let answer = self.send(&cmd("TIME")).await?;
            let after = clock.elapsed().get();
            let (seconds, micros): (f64, f64) = redis::from_redis_value(answer)
                .map_err(|_| ConnectionError::InvalidReply("expected two numbers from TIME"))?;
            if after - before < best.0 {
                best = (after - before, seconds + micros / 1e6, (before + after) / 2.0);
            }
        }
        clock.follow(best.1, best.2);
        Ok(())
    }
}

fn concatenate(pieces: &[Value]) -> Result<Vec<u8>, ConnectionError> {
    let mut all = Vec::new();
    for piece in pieces {
        match piece {
            Value::BulkString(bytes) => all.extend_from_slice(bytes),
            _ => return Err(ConnectionError::InvalidReply("expected bytes from our function")),
        }
    }
    Ok(all)
}
