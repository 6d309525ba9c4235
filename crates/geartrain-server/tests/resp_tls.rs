//! RESP with TLS: our own client, other clients, bad handshakes, and certificates that are replaced.
use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use geartrain_server::{GearmanSettings, Server, Settings, TlsFiles};
use geartrain_testkit::peers::Scratch;
use geartrain_testkit::tls::Authority;
use rustls::pki_types::ServerName;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio_rustls::client::TlsStream;

use crate::gearman_tls::{LOCAL, client};

/// An authority, its files and a server's certificate.
struct Pki {
    authority: Authority,
    scratch: Scratch,
    ca: PathBuf,
    files: TlsFiles,
}

impl Pki {
    fn new() -> Pki {
        let (authority, scratch) = (Authority::new(), Scratch::new("resp-tls"));
        let ca = authority.write(&scratch, "ca.pem");
        let (certificate, key) = authority.sign(&scratch, "server", "127.0.0.1");
        Pki { authority, ca, files: TlsFiles { certificate, key, authorities: None }, scratch }
    }

    fn settings(&self) -> Settings {
        Settings { resp_tls: Some(self.files.clone()), ..Settings::new("memory:", (LOCAL, 0).into()) }
    }

    fn url(&self, server: &Server) -> String {
        format!("rediss://{}?patience=1&ca={}", server.resp(), self.ca.display())
    }
}

async fn open(address: SocketAddr, ca: &std::path::Path) -> std::io::Result<TlsStream<TcpStream>> {
    let stream = TcpStream::connect(address).await?;
    client(ca, None).connect(ServerName::try_from("127.0.0.1").unwrap(), stream).await
}

async fn ping(stream: &mut TlsStream<TcpStream>) -> bool {
    let mut answer = [0; 7];
    stream.write_all(b"PING\r\n").await.is_ok()
        && stream.read_exact(&mut answer).await.is_ok()
        && answer == *b"+PONG\r\n"
}

/// What the server sends to a client that does not speak TLS.
async fn answer_to(address: SocketAddr, bytes: &[u8]) -> Vec<u8> {
    let mut plain = TcpStream::connect(address).await.unwrap();
    plain.write_all(bytes).await.unwrap();
    let mut answer = Vec::new();
    let _ = plain.read_to_end(&mut answer).await;
    answer
}

#[tokio::test]
async fn our_client_works_over_tls_and_checks_the_certificate() {
    let pki = Pki::new();
    let server = Server::start(&pki.settings()).await.unwrap();
    let queue = geartrain::connect(&pki.url(&server)).await.unwrap();
    let payload = format!("\"{}\"", "x".repeat(3 << 20));
    queue.put("mail", "k", payload.as_str()).jid("j1").await.unwrap();
    let job = queue.pop_wait("mail", "w1", Duration::from_secs(30)).await.unwrap().unwrap();
    assert_eq!(job.payload.bytes().len(), payload.len());
    queue.complete(&job).await.unwrap();
    let waiting = queue.clone();
    let parked = tokio::spawn(async move { waiting.pop_wait("mail", "w1", Duration::from_secs(60)).await });
    queue.put("mail", "k", "{}").jid("j2").await.unwrap();
    assert_eq!(parked.await.unwrap().unwrap().unwrap().jid.to_string(), "j2");

    let other = Authority::new().write(&pki.scratch, "other.pem");
    for (url, why) in [
        (format!("rediss://{}?patience=1", server.resp()), "UnknownIssuer"),
        (format!("rediss://{}?patience=1&ca={}", server.resp(), other.display()), "invalid peer certificate"),
        (format!("rediss://{}?ca=/nowhere.pem", server.resp()), "/nowhere.pem"),
        (format!("rediss://{}?ca={}", server.resp(), pki.files.key.display()), "no certificate"),
        (
            format!(
                "rediss://localhost:{}?patience=1&ca={}",
                server.resp().ip().unwrap().port(),
                pki.ca.display()
            ),
            "localhost",
        ),
    ] {
        let error = geartrain::connect(&url).await.err().unwrap_or_else(|| panic!("{url} is refused"));
        let mut text = error.to_string();
        let mut source = std::error::Error::source(&error);
        while let Some(cause) = source {
            text = format!("{text}: {cause}");
            source = cause.source();
        }
        assert!(text.contains(why), "{url}: {text}");
    }
    server.stop().await;
}

#[tokio::test]
async fn a_client_that_closes_before_it_has_read_its_job_holds_none() {
    let pki = Pki::new();
    let server = Server::start(&pki.settings()).await.unwrap();
    let queue = geartrain::connect(&pki.url(&server)).await.unwrap();
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_secs();
    for round in 0..20 {
        let jid = queue.put("mail", "k", "{}").await.unwrap();
        let mut stream = open(server.resp().ip().unwrap(), &pki.ca).await.unwrap();
        // The first reply comes with messages of TLS. Until they are read, the client resets the connection
        // when it closes, and from then on when the reply arrives.
        assert!(round % 2 == 0 || ping(&mut stream).await);
        let pop = format!("EVAL qless 0 pop {now} mail gone 1\r\n");
        stream.write_all(pop.as_bytes()).await.unwrap();
        drop(stream);
        let job = queue.pop_wait("mail", "patient", Duration::from_secs(20)).await.unwrap();
        let job = job.unwrap_or_else(|| panic!("round {round}: the job does not come back"));
        assert_eq!((&job.jid, job.remaining), (&jid, i64::from(job.retries)));
        queue.complete(&job).await.unwrap();
    }
    drop(queue);
    server.stop().await;
}

#[tokio::test]
async fn a_client_certificate_is_required_only_with_authorities() {
    let mut pki = Pki::new();
    pki.files.authorities = Some(pki.ca.clone());
    let server = Server::start(&pki.settings()).await.unwrap();
    let identity = |authority: &Authority, name: &str| {
        let (certificate, key) = authority.sign(&pki.scratch, name, name);
        format!("{}&cert={}&key={}", pki.url(&server), certificate.display(), key.display())
    };
    let queue = geartrain::connect(&identity(&pki.authority, "worker")).await.unwrap();
    queue.put("mail", "k", "{}").await.unwrap();
    assert!(geartrain::connect(&pki.url(&server)).await.is_err());
    assert!(geartrain::connect(&identity(&Authority::new(), "stranger")).await.is_err());
    server.stop().await;

    // Client certificates authenticate, so an address that other machines can reach needs no password.
    let everywhere = Settings { resp: ([0, 0, 0, 0], 0).into(), ..pki.settings() };
    Server::start(&everywhere).await.unwrap().stop().await;
    let files = TlsFiles { authorities: None, ..pki.files.clone() };
    assert!(Server::start(&Settings { resp_tls: Some(files), ..everywhere }).await.is_err());
}

#[tokio::test]
async fn plain_text_gets_no_answer_and_a_slow_handshake_delays_no_client() {
    let pki = Pki::new();
    let server = Server::start(&pki.settings()).await.unwrap();
    for bytes in [&b"PING\r\n"[..], b"*1\r\n$4\r\nPING\r\n", b"GET / HTTP/1.1\r\n\r\n", b"\0"] {
        assert_eq!(answer_to(server.resp().ip().unwrap(), bytes).await, b"");
    }
    // Silent from the beginning, and silent in mid-handshake.
    let mut slow = Vec::new();
    for number in 0..50 {
        let mut stream = TcpStream::connect(server.resp().ip().unwrap()).await.unwrap();
        if number % 2 == 0 {
            stream.write_all(b"\x16\x03\x01\x02\x00").await.unwrap();
        }
        slow.push(stream);
    }
    let mut stream = open(server.resp().ip().unwrap(), &pki.ca).await.unwrap();
    assert!(ping(&mut stream).await);
    // A stop does not wait for them.
    server.stop().await;
}

#[tokio::test]
async fn a_password_is_required_behind_the_handshake() {
    let pki = Pki::new();
    let settings = Settings { password: Some("secret".to_owned()), ..pki.settings() };
    let server = Server::start(&settings).await.unwrap();
    let mut stream = open(server.resp().ip().unwrap(), &pki.ca).await.unwrap();
    stream.write_all(b"PING\r\n").await.unwrap();
    let mut answer = [0; 7];
    stream.read_exact(&mut answer).await.unwrap();
    assert_eq!(&answer, b"-NOAUTH");
    let url = pki.url(&server).replace("rediss://", "rediss://:secret@");
    geartrain::connect(&url).await.unwrap().put("mail", "k", "{}").await.unwrap();
    server.stop().await;
}

/// The certificate that the server presents now.
async fn presented(address: SocketAddr, ca: &std::path::Path) -> Option<Vec<u8>> {
    let stream = open(address, ca).await.ok()?;
    stream.get_ref().1.peer_certificates().map(|chain| chain[0].to_vec())
}

#[tokio::test]
async fn reloaded_certificates_are_used_for_new_connections_of_both_protocols() {
    let pki = Pki::new();
    let gearman = GearmanSettings { tls: Some(pki.files.clone()), ..GearmanSettings::new((LOCAL, 0).into()) };
    let server = Server::start(&Settings { gearman: Some(gearman), ..pki.settings() }).await.unwrap();
    let ports = [server.resp().ip().unwrap(), server.gearman().unwrap().ip().unwrap()];
    let before = presented(ports[0], &pki.ca).await.unwrap();
    let mut old = open(ports[0], &pki.ca).await.unwrap();

    // A certificate without its key, and a file that is cut off, change nothing.
    let key = std::fs::read(&pki.files.key).unwrap();
    pki.authority.sign(&pki.scratch, "server", "127.0.0.1");
    std::fs::write(&pki.files.key, &key).unwrap();
    server.reload();
    std::fs::write(&pki.files.certificate, "-----BEGIN CERTIFICATE-----\nMIIB").unwrap();
    server.reload();
    for port in ports {
        assert_eq!(presented(port, &pki.ca).await.as_ref(), Some(&before));
    }

    // Another authority signs the new one.
    let new = Authority::new();
    let new_ca = new.write(&pki.scratch, "new-ca.pem");
    new.sign(&pki.scratch, "server", "127.0.0.1");
    server.reload();
    for port in ports {
        assert_eq!(presented(port, &pki.ca).await, None);
        assert_ne!(presented(port, &new_ca).await, Some(before.clone()));
        assert!(presented(port, &new_ca).await.is_some());
    }
    // The connection from before goes on.
    assert!(ping(&mut old).await);
    server.stop().await;
}

/// A client that reads late gets all of a large reply: no part of it stays in the buffer of the encryption.
#[tokio::test]
async fn a_large_reply_reaches_a_client_that_reads_late() {
    let pki = Pki::new();
    let server = Server::start(&pki.settings()).await.unwrap();
    let mut stream = open(server.resp().ip().unwrap(), &pki.ca).await.unwrap();
    let text = "x".repeat(8 << 20);
    let request = format!("*2\r\n$4\r\nECHO\r\n${}\r\n{text}\r\n", text.len());
    stream.write_all(request.as_bytes()).await.unwrap();
    stream.flush().await.unwrap();
    let mut answer = vec![0; format!("${}\r\n", text.len()).len() + text.len() + 2];
    let reading = stream.read_exact(&mut answer);
    tokio::time::timeout(Duration::from_secs(60), reading).await.expect("all of it").unwrap();
    assert!(answer.ends_with(b"xx\r\n"));
    server.stop().await;
}

/// The Redis client for Python and `redis-cli` connect with TLS.
#[tokio::test(flavor = "multi_thread")]
async fn other_clients_connect_with_tls() {
    let pki = Pki::new();
    let server = Server::start(&pki.settings()).await.unwrap();
    let (port, ca) = (server.resp().ip().unwrap().port().to_string(), pki.ca.display().to_string());
    let program = "import redis, sys; queue = redis.Redis(port=int(sys.argv[1]), host='127.0.0.1', ssl=True, \
        ssl_ca_certs=sys.argv[2]); print(queue.eval('', 0, 'put', 0, 'w', 'mail', 'j1', 'k', '{}', 0))";
    let ran =
        std::process::Command::new(crate::qless_py::python()).args(["-c", program, &port, &ca]).output();
    let ran = ran.unwrap();
    assert_eq!(String::from_utf8_lossy(&ran.stdout), "b'j1'\n", "{}", String::from_utf8_lossy(&ran.stderr));
    let mut redis_cli = std::process::Command::new("redis-cli");
    redis_cli.args(["--tls", "--cacert", &ca, "-h", "127.0.0.1", "-p", &port, "DBSIZE"]);
    let ran =
        redis_cli.output().expect("redis-cli is there (on Debian and Ubuntu: apt-get install redis-tools)");
    assert_eq!(String::from_utf8_lossy(&ran.stdout), "1\n", "{}", String::from_utf8_lossy(&ran.stderr));
    server.stop().await;
}
