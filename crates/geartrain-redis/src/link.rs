//! One connection to the node that the namespace is on, and how it is found.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use geartrain_core::Clock as _;
use geartrain_core::wire::BadWire;
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
use crate::script;
use crate::url::{Kind, Node, RedisUrl};

/// How long a node has to answer a call for a connection.
const CONNECT_MAX: Duration = Duration::from_secs(5);

/// How often a machine that says nothing is asked whether it is there, and how often in vain before it is not.
const PROBE: Duration = Duration::from_secs(5);
const PROBES: u32 = 3;

/// How long replicas have to confirm what was done.
const REPLICAS_MAX_MS: u64 = 5_000;

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
            Trouble::NoMaster(_) | Trouble::Silent(_) => true,
            _ => false,
        }
    }
}

/// How to get in: the URL, and what was found out on the way.
pub(crate) struct Door {
    pub(crate) url: RedisUrl,
    /// Whether the other side has functions. If not, the same text is a script.
    functions: AtomicBool,
    clock: Option<Arc<SharedClock>>,
}

impl Door {
    pub(crate) fn new(url: RedisUrl, clock: Option<Arc<SharedClock>>) -> Door {
        Door { url, functions: AtomicBool::new(true), clock }
    }

    /// The name of a key or a channel.
    pub(crate) fn key(&self, name: impl std::fmt::Display) -> String {
        format!("{}{name}", self.url.prefix)
    }

    /// Connects to the node that the namespace is on.
    pub(crate) async fn open(&self, pushes: Option<UnboundedSender<PushInfo>>) -> Result<Link, Trouble> {
        let address = match &self.url.kind {
            Kind::Single(node) => self.address(node),
            Kind::Unix(path) => ConnectionAddr::Unix(path.clone()),
            Kind::Sentinel { sentinels, master } => {
                self.address(&self.ask_sentinels(sentinels, master).await?)
            }
            Kind::Cluster(seeds) => self.address(&self.ask_cluster(seeds).await?),
        };
        let mut link = self.connect(address, pushes).await?;
        if let Some(clock) = &self.clock {
            link.ask_the_time(clock).await?;
        }
        self.functions.store(self.has_functions(&mut link).await?, Ordering::Relaxed);
        Ok(link)
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

    /// Which node is the master, as far as the first sentinel knows that answers.
    async fn ask_sentinels(&self, sentinels: &[Node], master: &str) -> Result<Node, Trouble> {
        let mut last = Trouble::NoMaster("no sentinel is named".into());
        for sentinel in sentinels {
            // The user and password of the URL are the Redis's.
            let asked = match Link::to(self.address(sentinel), RedisConnectionInfo::default(), None).await {
                Ok(mut link) => link.send(cmd("SENTINEL").arg("GET-MASTER-ADDR-BY-NAME").arg(master)).await,
                Err(trouble) => Err(trouble),
            };
            match asked {
                Ok(answer) => match redis::from_redis_value::<Option<(String, u16)>>(answer) {
                    Ok(Some(node)) => return Ok(node),
                    _ => last = Trouble::NoMaster(format!("the sentinels know none that is called {master}")),
                },
                Err(trouble) => last = trouble,
            }
        }
        Err(last)
    }

    /// Which node has the slot that the prefix is in, as far as the first node knows that answers.
    async fn ask_cluster(&self, seeds: &[Node]) -> Result<Node, Trouble> {
        let mut last = Trouble::NoMaster("no node is named".into());
        for seed in seeds {
            match self.ask_node(seed).await {
                Ok(node) => return Ok(node),
                Err(trouble) => last = trouble,
            }
        }
        Err(last)
    }

    async fn ask_node(&self, seed: &Node) -> Result<Node, Trouble> {
        let mut link = self.connect(self.address(seed), None).await?;
        let slot = link.send(cmd("CLUSTER").arg("KEYSLOT").arg(self.url.prefix.as_str())).await?;
        let slot: i64 = redis::from_redis_value(slot).map_err(|_| Trouble::Nonsense("a slot is a number"))?;
        let slots = link.send(cmd("CLUSTER").arg("SLOTS")).await?;
        let ranges: Vec<Vec<Value>> =
            redis::from_redis_value(slots).map_err(|_| Trouble::Nonsense("slots are a list of ranges"))?;
        for range in ranges {
            let [first, last, master, ..] = &range[..] else { continue };
            let within = |bound: &Value| match bound {
                Value::Int(number) => *number,
                _ => -1,
            };
            if (within(first)..=within(last)).contains(&slot) {
                let Value::Array(master) = master else { continue };
                let host = master.first().and_then(|host| redis::from_redis_value_ref::<String>(host).ok());
                let port = master.get(1).and_then(|port| redis::from_redis_value_ref::<u16>(port).ok());
                // A node that does not know its own name is the one that was asked.
                let host = host.filter(|host| !host.is_empty()).unwrap_or_else(|| seed.0.clone());
                return Ok((host, port.unwrap_or(seed.1)));
            }
        }
        Err(Trouble::NoMaster(format!("no node of the Cluster has slot {slot}")))
    }

    /// Whether the other side is a geartrain server, which nobody shares with foreign scripts.
    pub(crate) async fn is_geartrain(&self, link: &mut Link) -> Result<bool, Trouble> {
        let info = link.send(cmd("INFO").arg("server")).await?;
        let info: String = redis::from_redis_value(info).map_err(|_| Trouble::Nonsense("INFO is a text"))?;
        Ok(info.contains("geartrain_version:"))
    }

    /// Sends a request of ours, and reads what comes back. If our library is not there, it is loaded first.
    pub(crate) async fn ask(&self, link: &mut Link, request: &[u8]) -> Result<Vec<u8>, Trouble> {
        loop {
            let functions = self.functions.load(Ordering::Relaxed);
            let (how, name) = if functions {
                ("FCALL", &script::library().name)
            } else {
                ("EVALSHA", &script::script().sha)
            };
            let call = cmd(how).arg(name).arg(1).arg(self.url.prefix.as_str()).arg(request).take();
            let answered = link.send(&call).await;
            let error = match answered {
                Ok(Value::BulkString(bytes)) => {
                    self.replicate(link).await?;
                    return Ok(bytes);
                }
                // A script that would join the pieces of a batch's answer would do so for longer than for what it was asked.
                Ok(Value::Array(pieces)) => {
                    self.replicate(link).await?;
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
                link.send(cmd("FUNCTION").arg("LOAD").arg("REPLACE").arg(&script::library().text)).await?;
            } else {
                return Err(error.into());
            }
        }
    }

    async fn replicate(&self, link: &mut Link) -> Result<(), Trouble> {
        let wanted = self.url.replicas;
        if wanted == 0 {
            return Ok(());
        }
        let confirmed = link.send(cmd("WAIT").arg(wanted).arg(REPLICAS_MAX_MS)).await?;
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
}

impl Link {
    async fn to(
        address: ConnectionAddr,
        login: RedisConnectionInfo,
        pushes: Option<UnboundedSender<PushInfo>>,
    ) -> Result<Link, Trouble> {
        let protocol = if pushes.is_some() { ProtocolVersion::RESP3 } else { ProtocolVersion::RESP2 };
        let info = address.into_connection_info()?.set_redis_settings(login.set_protocol(protocol));
        let info = info.set_tcp_settings(tcp());
        // No timeout for answers: a batch may wait for a slow disk, and a node that is gone closes the connection or is found out by keep-alive.
        let mut config =
            AsyncConnectionConfig::new().set_connection_timeout(Some(CONNECT_MAX)).set_response_timeout(None);
        if let Some(pushes) = pushes {
            config = config.set_push_sender(pushes);
        }
        let client = Client::open(info)?;
        let opening = client.get_multiplexed_async_connection_with_config(&config);
        let too_long = |_| Trouble::NoMaster("a node took a connection and then said nothing".into());
        Ok(Link { connection: timeout(CONNECT_MAX, opening).await.map_err(too_long)?? })
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
