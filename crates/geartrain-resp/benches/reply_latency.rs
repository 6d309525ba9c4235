//! Latency of a put while other clients wait for results: it must not grow with their number.
//!
//! `cargo bench -p geartrain-resp --bench reply_latency` prints a row per number of waiting clients;
//! `-- --puts 5000` measures that many puts per row. Rows take turns, so compare the figures of one run only.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::sync::Arc;
use std::time::{Duration, Instant};

use geartrain_core::SystemClock;
use geartrain_resp::{Front, Options};
use geartrain_store::StoreBackend;
use tokio_util::sync::CancellationToken;

const ROUNDS: usize = 3;
const WAITING_CLIENTS: [usize; 3] = [0, 1_000, 2_000];

fn main() {
    let puts = puts_per_row();
    println!("{:>7} {:>9} {:>9} {:>9}", "waiting", "p50 ms", "p90 ms", "p99 ms");
    for _ in 0..ROUNDS {
        for waiting in WAITING_CLIENTS {
            let latencies = measure(waiting, puts);
            let at = |share: usize| latencies[(latencies.len() - 1) * share / 100].as_secs_f64() * 1e3;
            println!("{waiting:>7} {:>9.3} {:>9.3} {:>9.3}", at(50), at(90), at(99));
        }
    }
}

fn puts_per_row() -> usize {
    let arguments: Vec<String> = std::env::args().collect();
    let value = arguments.iter().position(|argument| argument == "--puts").map(|at| &arguments[at + 1]);
    value.map_or(2_000, |value| value.parse().expect("--puts takes a number"))
}

/// Latencies of puts over one connection, sorted, while `waiting` others each have a result stream open.
fn measure(waiting: usize, puts: usize) -> Vec<Duration> {
    let runtime = tokio::runtime::Runtime::new().expect("a runtime");
    let stop = CancellationToken::new();
    let (address, serving) = runtime.block_on(async {
        let clock = Arc::new(SystemClock);
        let backend = Arc::new(StoreBackend::in_memory(clock.clone()).expect("a backend in memory"));
        let front = Front::new(backend, clock, Options::default());
        let listener = tokio::net::TcpListener::bind(("127.0.0.1", 0)).await.expect("a free port");
        let (address, stop) = (listener.local_addr().expect("bound above"), stop.clone());
        (address, tokio::spawn(async move { front.serve_tcp(listener, stop).await }))
    });
    let clients: Vec<Client> = (1..=waiting)
        .map(|stream_id| {
            let mut client = Client::connect(address);
            // RESP3, so that the connection could send requests as well; the subscription's reply starts with
            // `>`.
            client.ask(&["HELLO", "3"], b"\r\nmodules\r\n*0\r\n");
            client.ask(&["SUBSCRIBE", &format!("gt:front:{stream_id}")], b":1\r\n");
            client
        })
        .collect();
    let mut client = Client::connect(address);
    let mut latencies: Vec<Duration> = (0..puts)
        .map(|number| {
            let jid = format!("{number:08}");
            let started = Instant::now();
            client.ask(&["EVAL", "", "0", "put", "0", "w", "q", &jid, "k", "{}", "0"], b"\r\n");
            client.line();
            started.elapsed()
        })
        .collect();
    drop(clients);
    stop.cancel();
    runtime.block_on(serving).expect("the server ends");
    latencies.sort_unstable();
    latencies
}

struct Client(BufReader<TcpStream>);

impl Client {
    fn connect(address: SocketAddr) -> Client {
        let stream = TcpStream::connect(address).expect("the server listens");
        stream.set_nodelay(true).expect("an open socket");
        Client(BufReader::new(stream))
    }

    /// Sends a request, and reads until the reply ends with `end`.
    fn ask(&mut self, words: &[&str], end: &[u8]) {
        let mut request = format!("*{}\r\n", words.len());
        for word in words {
            request.push_str(&format!("${}\r\n{word}\r\n", word.len()));
        }
        self.0.get_mut().write_all(request.as_bytes()).expect("the server reads");
        let (mut reply, mut byte) = (Vec::new(), [0]);
        while !reply.ends_with(end) {
            self.0.read_exact(&mut byte).expect("the server replies");
            reply.push(byte[0]);
        }
    }

    fn line(&mut self) {
        let mut line = String::new();
        self.0.read_line(&mut line).expect("the server replies");
        assert!(!line.starts_with('-'), "{line}");
    }
}
