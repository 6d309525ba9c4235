//! The dashboard with a million jobs: how long the requests of its pages take, and what they cost the queue.
//!
//! `cargo bench --profile dev -p geartrain-http --bench dashboard` fills a directory with jobs in twenty queues and in
//! every state, then runs rounds without and with dashboards, in turns. In all of them clients put, pop and complete
//! jobs, each call without a pause and with `sync=always`. In the second kind the pages Overview and Jobs are open,
//! and send their requests over HTTP once a second, as they do while events arrive. The first table has the requests
//! by how long they took under that load, the last line the lifecycles a second. `-- --jobs 1000000`, `-- --seconds 5`,
//! `-- --rounds 5`, `-- --clients 64`, `-- --dashboards 2` and `-- --directory DIR` change it.

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use geartrain_core::{
    Backend, Call, Complete, Count, Fail, Group, Jid, Klass, Operation, Pop, Popped, Priority, Put,
    QueueName, Release, Seconds, SystemClock, Tag, Track, WorkerName,
};
use geartrain_http::{Front, Options};
use geartrain_store::{StoreBackend, StoreOptions};
use tokio::io::{AsyncBufReadExt as _, AsyncReadExt as _, AsyncWriteExt as _, BufReader};
use tokio::net::{TcpListener, TcpStream};
use tokio_util::sync::CancellationToken;

type Failure = Box<dyn std::error::Error + Send + Sync>;

const BATCH: usize = 1_000;
const QUEUES: usize = 20;
/// The time between two refreshes of a page: `REFRESH_MS` of live.js.
const REFRESH: Duration = Duration::from_secs(1);

/// A page and its requests: method, path and body.
struct Page {
    name: &'static str,
    requests: &'static [(&'static str, &'static str, &'static str)],
}

/// What pages/overview.js and pages/jobs.js ask for, the latter with filters that people try.
const PAGES: [Page; 2] = [
    Page {
        name: "Overview",
        requests: &[
            ("POST", "/v1/batch", r#"[{"queues":{}},{"failed":{}},{"workers":{}},{"recurring":{}}]"#),
            ("GET", "/v1/history?span=10m&all=true", ""),
            ("GET", "/v1/server", ""),
        ],
    },
    Page {
        name: "Jobs",
        requests: &[
            ("GET", "/v1/jobs?limit=50", ""),
            ("GET", "/v1/jobs?where=state%3Dwaiting&limit=50", ""),
            ("GET", "/v1/jobs?where=state%3Dfailed&limit=50", ""),
            ("GET", "/v1/jobs?where=state%3Drunning&limit=50", ""),
            ("GET", "/v1/jobs?where=state%3Ddepends&limit=50", ""),
            ("GET", "/v1/jobs?where=state%3Dscheduled+queue%3Dqueue-3&limit=50", ""),
            ("GET", "/v1/jobs?where=state%3Dcomplete&limit=50", ""),
            ("GET", "/v1/jobs?where=tag%3Dtag-7&limit=50", ""),
            ("GET", "/v1/jobs?where=queue%3Dqueue-5+klass%3Dklass-2&limit=50", ""),
            ("GET", "/v1/jobs?where=group%3Dgroup-4&limit=50", ""),
            ("GET", "/v1/jobs?where=args.user.id%3D424242&limit=50", ""),
            ("GET", "/v1/jobs?where=klass%3Dnowhere&limit=50", ""),
        ],
    },
];

fn main() -> Result<(), Failure> {
    let arguments = Arguments::read()?;
    let _ = std::fs::remove_dir_all(&arguments.directory);
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build()?;
    let done = runtime.block_on(run(&arguments));
    drop(runtime);
    std::fs::remove_dir_all(&arguments.directory)?;
    done
}

async fn run(arguments: &Arguments) -> Result<(), Failure> {
    let store = StoreBackend::open(&arguments.directory, StoreOptions::default(), Arc::new(SystemClock))?;
    let backend: Arc<dyn Backend> = Arc::new(store);
    let begun = Instant::now();
    fill(&*backend, arguments.jobs).await?;
    println!("{} jobs were put in {:.0} s", arguments.jobs, begun.elapsed().as_secs_f64());
    let (listener, stop) = (TcpListener::bind(("127.0.0.1", 0)).await?, CancellationToken::new());
    let address = listener.local_addr()?.to_string();
    let front = Front::new(backend.clone(), Options::default(), stop.clone());
    let served = tokio::spawn(async move { front.serve_tcp(listener).await });

    let mut timings: Vec<Timing> = Vec::new();
    let (mut alone, mut beside) = (Vec::new(), Vec::new());
    for _ in 0..arguments.rounds {
        alone.push(load(&backend, arguments).await?);
        let is_over = Arc::new(AtomicBool::new(false));
        let dashboards: Vec<_> = (0..arguments.dashboards)
            .flat_map(|_| &PAGES)
            .map(|page| tokio::spawn(watch(address.clone(), page, is_over.clone())))
            .collect();
        beside.push(load(&backend, arguments).await?);
        is_over.store(true, Ordering::Relaxed);
        for dashboard in dashboards {
            timings.extend(dashboard.await??);
        }
    }
    stop.cancel();
    served.await?;
    print(&timings);
    let (without, with) = (median(&mut alone), median(&mut beside));
    println!("\nlifecycles/s without: {without:.0}, with: {with:.0}, {:.1} %", 100.0 * with / without);
    Ok(())
}

// The jobs ----------------------------------------------------------------------------------------------------

async fn one<O: Operation>(backend: &dyn Backend, operation: O) -> Result<O::Reply, Failure> {
    let answer = backend.execute(vec![Call::from(operation)]).await?.pop().ok_or("there is no answer")?;
    Ok(O::answer(answer?).ok_or("it is the answer to something else")?)
}

async fn fill(backend: &dyn Backend, jobs: usize) -> Result<(), Failure> {
    for first in (0..jobs).step_by(BATCH) {
        let puts = (first..jobs.min(first + BATCH)).map(put).collect::<Result<Vec<Call>, _>>()?;
        for answer in backend.execute(puts).await? {
            answer?;
        }
    }
    // Of two thousand jobs of each queue, most are completed, some fail, and some run on.
    for number in 0..2 * QUEUES {
        let queue = QueueName::new(format!("queue-{}", number % QUEUES))?;
        let worker = WorkerName::new(format!("worker-{number}"))?;
        let pop = Pop { count: Count::new(BATCH as i64)?, ..Pop::new(queue, worker) };
        let popped = one(backend, pop).await?;
        let ends = popped.jobs.iter().enumerate().filter_map(|(index, job)| end(index, job));
        for answer in backend.execute(ends.collect()).await? {
            answer?;
        }
    }
    for number in 0..QUEUES {
        one(backend, Track { jid: Jid::new(format!("job-{}", jobs - 1 - number))?, on: true }).await?;
    }
    Ok(())
}

fn put(number: usize) -> Result<Call, Failure> {
    let queue = QueueName::new(format!("queue-{}", number % QUEUES))?;
    let klass = Klass::new(format!("klass-{}", number % 7))?;
    let payload = format!(r#"{{"user":{{"id":{number}}},"mail":"user-{number}@example.org"}}"#);
    let tags = [number % 50, 50 + number % 11].map(|tag| Tag::new(format!("tag-{tag}")));
    let mut put = Put::new(queue, Jid::new(format!("job-{number}"))?, klass, payload);
    put.tags = Some(tags.into_iter().collect::<Result<_, _>>()?);
    put.priority = Some(Priority::new((number % 5) as f64)?);
    match number % 100 {
        0..5 => put.delay = Seconds::from(3_600 + (number % 3_600) as i32),
        5..7 if number > 100 => put.depends = vec![Jid::new(format!("job-{}", number - 50))?],
        _ => {}
    }
    Ok(put.into())
}

/// How an attempt ends, if it does.
fn end(index: usize, job: &Popped) -> Option<Call> {
    let Release { jid, holder, .. } = Release::of(job);
    match index % 10 {
        0 => None,
        1 => Some(
            Fail::new(jid, holder, Group::new(format!("group-{}", index % 30)).ok()?, "it said 451").into(),
        ),
        _ => Some(Complete::new(jid, holder).into()),
    }
}

// The load ----------------------------------------------------------------------------------------------------

/// Puts, pops and completes jobs for a while; returns the lifecycles a second.
async fn load(backend: &Arc<dyn Backend>, arguments: &Arguments) -> Result<f64, Failure> {
    let (begun, done) = (Instant::now(), Arc::new(AtomicU64::new(0)));
    let clients: Vec<_> = (0..arguments.clients)
        .map(|client| tokio::spawn(work(backend.clone(), client, begun + arguments.seconds, done.clone())))
        .collect();
    for client in clients {
        client.await??;
    }
    Ok(done.load(Ordering::Relaxed) as f64 / begun.elapsed().as_secs_f64())
}

async fn work(
    backend: Arc<dyn Backend>,
    client: usize,
    ends: Instant,
    done: Arc<AtomicU64>,
) -> Result<(), Failure> {
    let queue = QueueName::new(format!("load-{}", client % 4))?;
    let (worker, klass) = (WorkerName::new(format!("load-{client}"))?, Klass::new("load")?);
    while Instant::now() < ends {
        let put = Put::new(queue.clone(), Jid::from_uuid(uuid()), klass.clone(), "{}");
        one(&*backend, put).await?;
        let popped = one(&*backend, Pop::new(queue.clone(), worker.clone())).await?;
        if let Some(job) = popped.jobs.first() {
            let Release { jid, holder, .. } = Release::of(job);
            one(&*backend, Complete::new(jid, holder)).await?;
            done.fetch_add(1, Ordering::Relaxed);
        }
    }
    Ok(())
}

/// An id that no other job has.
fn uuid() -> [u8; 16] {
    static NUMBER: AtomicU64 = AtomicU64::new(0);
    let mut bytes = [0x70; 16];
    bytes[8..].copy_from_slice(&(NUMBER.fetch_add(1, Ordering::Relaxed) | 1 << 63).to_be_bytes());
    bytes
}

// The dashboards ----------------------------------------------------------------------------------------------

/// How long a request took: its page, its path, and seconds.
type Timing = (&'static str, &'static str, f64);

/// Sends the requests of a page once a second, over one connection.
async fn watch(
    address: String,
    page: &'static Page,
    is_over: Arc<AtomicBool>,
) -> Result<Vec<Timing>, Failure> {
    let mut connection = BufReader::new(TcpStream::connect(&address).await?);
    connection.get_ref().set_nodelay(true)?;
    let mut took = Vec::new();
    while !is_over.load(Ordering::Relaxed) {
        let next = Instant::now() + REFRESH;
        for (method, path, body) in page.requests {
            let begun = Instant::now();
            ask(&mut connection, method, path, body).await?;
            took.push((page.name, *path, begun.elapsed().as_secs_f64()));
        }
        tokio::time::sleep_until(next.into()).await;
    }
    Ok(took)
}

/// Sends a request and reads its whole response.
async fn ask(
    connection: &mut BufReader<TcpStream>,
    method: &str,
    path: &str,
    body: &str,
) -> Result<(), Failure> {
    let of_body = match body {
        "" => String::new(),
        body => format!("Content-Type: application/json\r\nContent-Length: {}\r\n", body.len()),
    };
    let request = format!("{method} {path} HTTP/1.1\r\nHost: localhost\r\n{of_body}\r\n{body}");
    connection.get_mut().write_all(request.as_bytes()).await?;
    let (mut line, mut length) = (String::new(), None);
    connection.read_line(&mut line).await?;
    if !line.starts_with("HTTP/1.1 200 ") {
        return Err(format!("{method} {path}: {line}").into());
    }
    loop {
        line.clear();
        connection.read_line(&mut line).await?;
        match line.trim_end().to_ascii_lowercase().split_once(": ") {
            Some(("content-length", bytes)) => length = Some(bytes.parse::<usize>()?),
            Some(_) => {}
            None => break,
        }
    }
    let mut content = vec![0; length.ok_or("a response has no length")?];
    connection.read_exact(&mut content).await?;
    Ok(())
}

fn print(timings: &[Timing]) {
    let heading = ["page", "request", "count", "p50 ms", "p99 ms", "max ms"];
    let [page, request, count, p50, p99, max] = heading;
    println!("\n{page:<9} {request:<66} {count:>5} {p50:>8} {p99:>8} {max:>8}");
    for page in &PAGES {
        for (_, path, _) in page.requests {
            let of = |(name, asked, _): &&Timing| *name == page.name && asked == path;
            let mut took: Vec<f64> = timings.iter().filter(of).map(|(.., seconds)| seconds * 1e3).collect();
            took.sort_unstable_by(f64::total_cmp);
            let at = |share: f64| took.get(((took.len() as f64 * share) as usize).min(took.len() - 1));
            if let Some(max) = took.last()
                && let (Some(p50), Some(p99)) = (at(0.5), at(0.99))
            {
                let (name, count) = (page.name, took.len());
                println!("{name:<9} {path:<66} {count:>5} {p50:>8.1} {p99:>8.1} {max:>8.1}");
            }
        }
    }
}

fn median(values: &mut [f64]) -> f64 {
    values.sort_unstable_by(f64::total_cmp);
    values.get(values.len() / 2).copied().unwrap_or_default()
}

// Arguments ---------------------------------------------------------------------------------------------------

struct Arguments {
    jobs: usize,
    seconds: Duration,
    rounds: usize,
    clients: usize,
    dashboards: usize,
    directory: PathBuf,
}

impl Arguments {
    fn read() -> Result<Arguments, Failure> {
        let mut arguments = Arguments {
            jobs: 1_000_000,
            seconds: Duration::from_secs(5),
            rounds: 5,
            clients: 64,
            dashboards: 2,
            directory: std::env::temp_dir().join(format!("geartrain-dashboard-{}", std::process::id())),
        };
        let mut words = std::env::args().skip(1).filter(|word| word != "--bench");
        while let Some(flag) = words.next() {
            let value = words.next().ok_or_else(|| format!("{flag} needs a value"))?;
            match flag.as_str() {
                "--jobs" => arguments.jobs = value.parse()?,
                "--seconds" => arguments.seconds = Duration::from_secs_f64(value.parse()?),
                "--rounds" => arguments.rounds = value.parse()?,
                "--clients" => arguments.clients = value.parse()?,
                "--dashboards" => arguments.dashboards = value.parse()?,
                "--directory" => arguments.directory = value.into(),
                _ => return Err(format!("there is no argument {flag}").into()),
            }
        }
        Ok(arguments)
    }
}
