//! What a server lets in: TLS on HTTP, addresses that other machines can reach, roles for our own client, and
//! read-only servers.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;

use geartrain::{Error, Refusal, Role};
use geartrain_server::{
    GearmanSettings, HttpSettings, Server, Settings, StartError, TlsFiles, change_keys, new_access_key,
};
use geartrain_testkit::peers::Scratch;
use geartrain_testkit::tls::Authority;
use rustls::pki_types::ServerName;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio_rustls::client::TlsStream;

use crate::gearman_tls::{LOCAL, client};

struct Pki {
    authority: Authority,
    scratch: Scratch,
    ca: PathBuf,
    files: TlsFiles,
}

impl Pki {
    fn new() -> Pki {
        let (authority, scratch) = (Authority::new(), Scratch::new("security"));
        let ca = authority.write(&scratch, "ca.pem");
        let (certificate, key) = authority.sign(&scratch, "server", "127.0.0.1");
        Pki { authority, ca, files: TlsFiles { certificate, key, authorities: None }, scratch }
    }

    fn https(&self, authorities: Option<PathBuf>) -> Settings {
        let tls = Some(TlsFiles { authorities, ..self.files.clone() });
        let http = HttpSettings { address: (LOCAL, 0).into(), hosts: Vec::new(), tls, settings: Vec::new() };
        Settings { http: Some(http), ..plain() }
    }
}

fn plain() -> Settings {
    Settings::new("memory:", (LOCAL, 0).into())
}

async fn get(mut stream: impl AsyncRead + AsyncWrite + Unpin, headers: &str) -> String {
    let request = format!("GET /v1/whoami HTTP/1.1\r\nHost: 127.0.0.1\r\nConnection: close\r\n{headers}\r\n");
    // Fails if the server has refused the certificate meanwhile.
    let _ = stream.write_all(request.as_bytes()).await;
    let mut answer = Vec::new();
    let _ = stream.read_to_end(&mut answer).await;
    String::from_utf8_lossy(&answer).into_owned()
}

async fn open(
    address: SocketAddr,
    ca: &std::path::Path,
    identity: Option<(PathBuf, PathBuf)>,
) -> std::io::Result<TlsStream<TcpStream>> {
    let stream = TcpStream::connect(address).await?;
    client(ca, identity).connect(ServerName::try_from("127.0.0.1").unwrap(), stream).await
}

#[tokio::test]
async fn http_speaks_tls_and_nothing_else() {
    let pki = Pki::new();
    let server = Server::start(&pki.https(None)).await.unwrap();
    let address = server.http().unwrap().ip().unwrap();
    let answer = get(open(address, &pki.ca, None).await.unwrap(), "").await;
    assert!(answer.starts_with("HTTP/1.1 200") && answer.contains("\"admin\""), "{answer}");
    assert_eq!(get(TcpStream::connect(address).await.unwrap(), "").await, "");
    // New files count from the reload on.
    let before = open(address, &pki.ca, None).await.unwrap();
    let other = Authority::new();
    other.sign(&pki.scratch, "server", "127.0.0.1");
    server.reload();
    assert!(open(address, &pki.ca, None).await.is_err());
    let new = other.write(&pki.scratch, "new.pem");
    assert!(get(open(address, &new, None).await.unwrap(), "").await.starts_with("HTTP/1.1 200"));
    assert!(get(before, "").await.starts_with("HTTP/1.1 200"));
    server.stop().await;
}

#[tokio::test]
async fn http_names_its_protocol_in_the_handshake() {
    let pki = Pki::new();
    let server = Server::start(&pki.https(None)).await.unwrap();
    let mut config = (**client(&pki.ca, None).config()).clone();
    for (offered, chosen) in [(&[b"h2".to_vec(), b"http/1.1".to_vec()][..], true), (&[b"h2".to_vec()], false)]
    {
        config.alpn_protocols = offered.to_vec();
        let stream = TcpStream::connect(server.http().unwrap().ip().unwrap()).await.unwrap();
        let connector = tokio_rustls::TlsConnector::from(Arc::new(config.clone()));
        let connected = connector.connect(ServerName::try_from("127.0.0.1").unwrap(), stream).await;
        let protocol = connected.as_ref().ok().and_then(|stream| stream.get_ref().1.alpn_protocol());
        assert_eq!(protocol, chosen.then_some(&b"http/1.1"[..]));
    }
    server.stop().await;
}

#[tokio::test]
async fn http_requires_client_certificates_only_with_authorities() {
    let pki = Pki::new();
    let server = Server::start(&pki.https(Some(pki.ca.clone()))).await.unwrap();
    let address = server.http().unwrap().ip().unwrap();
    let identity = pki.authority.sign(&pki.scratch, "ana", "ana");
    let answer = get(open(address, &pki.ca, Some(identity)).await.unwrap(), "").await;
    assert!(answer.starts_with("HTTP/1.1 200"), "{answer}");
    let stranger = match open(address, &pki.ca, None).await {
        Ok(stream) => get(stream, "").await,
        Err(_) => String::new(),
    };
    assert_eq!(stranger, "");
    server.stop().await;
}

#[tokio::test]
async fn a_session_over_tls_has_a_cookie_for_tls_only() {
    let pki = Pki::new();
    let settings = Settings { password: Some("secret".to_owned()), ..pki.https(None) };
    let server = Server::start(&settings).await.unwrap();
    let mut stream = open(server.http().unwrap().ip().unwrap(), &pki.ca, None).await.unwrap();
    let login = "POST /login HTTP/1.1\r\nHost: 127.0.0.1\r\nOrigin: https://127.0.0.1\r\nConnection: close\r\n\
                 Content-Type: application/x-www-form-urlencoded\r\nContent-Length: 10\r\n\r\nkey=secret";
    stream.write_all(login.as_bytes()).await.unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).await.unwrap();
    let answer = answer.to_ascii_lowercase();
    assert!(answer.starts_with("http/1.1 303") && answer.contains("; secure"), "{answer}");
    server.stop().await;
}

/// Each port, at an address that other machines can reach.
#[tokio::test]
async fn an_address_that_other_machines_can_reach_needs_a_login_and_encryption() {
    let pki = Pki::new();
    let everywhere: SocketAddr = ([0, 0, 0, 0], 0).into();
    let resp = |tls: Option<TlsFiles>, settings: Settings| Settings {
        resp: everywhere.into(),
        resp_tls: tls,
        ..settings
    };
    let http = |tls: Option<TlsFiles>, settings: Settings| Settings {
        http: Some(HttpSettings { address: everywhere.into(), hosts: Vec::new(), tls, settings: Vec::new() }),
        ..settings
    };
    let gearman = |tls: Option<TlsFiles>, settings: Settings| Settings {
        gearman: Some(GearmanSettings { tls, ..GearmanSettings::new(everywhere) }),
        ..settings
    };
    let tls = || Some(pki.files.clone());
    let certificates = || Some(TlsFiles { authorities: Some(pki.ca.clone()), ..pki.files.clone() });
    let password = || Settings { password: Some("secret".to_owned()), ..plain() };
    let insecure = || Settings { insecure: true, ..plain() };
    for settings in [
        resp(None, plain()),
        resp(tls(), plain()),
        http(None, plain()),
        http(tls(), plain()),
        gearman(None, plain()),
        gearman(tls(), plain()),
        // Gearman has no login.
        gearman(tls(), password()),
    ] {
        let started = Server::start(&settings).await;
        assert!(matches!(started, Err(StartError::Open { .. })), "{:?}", started.err());
    }
    for settings in [resp(None, password()), http(None, password())] {
        let started = Server::start(&settings).await;
        assert!(matches!(started, Err(StartError::Unencrypted { .. })), "{:?}", started.err());
    }
    for settings in [
        resp(tls(), password()),
        resp(certificates(), plain()),
        http(tls(), password()),
        http(certificates(), plain()),
        gearman(certificates(), plain()),
        resp(None, insecure()),
        http(None, insecure()),
        gearman(None, insecure()),
    ] {
        Server::start(&settings).await.unwrap().stop().await;
    }
}

#[tokio::test]
async fn our_client_sends_a_key_like_a_password_and_gets_refusals_with_their_code() {
    let scratch = Scratch::new("roles");
    let file = scratch.path().join("keys");
    let (key, viewer) = new_access_key("ana", Role::Viewer, 0, None).unwrap();
    change_keys(&file, |keys| {
        keys.push(key);
        Ok(())
    })
    .unwrap();
    let server = Server::start(&Settings { keys: Some(file), ..plain() }).await.unwrap();
    let queue = geartrain::connect(&format!("redis://:{viewer}@{}?patience=1", server.resp())).await.unwrap();
    assert!(queue.queues().await.unwrap().is_empty());
    let refused = queue.put("mail", "k", "{}").await;
    let Err(Error::Refused(Refusal::Forbidden { needed, role, .. })) = &refused else {
        panic!("{refused:?}")
    };
    assert_eq!((needed, role), (&Role::Operator, &Role::Viewer));
    assert!(geartrain::connect(&format!("redis://{}?patience=1", server.resp())).await.is_err());
    server.stop().await;
}

#[tokio::test]
async fn a_read_only_server_refuses_changes_on_every_port() {
    let gearman = Some(GearmanSettings::new((LOCAL, 0).into()));
    let http =
        Some(HttpSettings { address: (LOCAL, 0).into(), hosts: Vec::new(), tls: None, settings: Vec::new() });
    let scratch = Scratch::new("read-only");
    let store = format!("embedded:{}", scratch.path().join("data").display());
    let settings = Settings { read_only: true, gearman, http, ..Settings::new(&store, (LOCAL, 0).into()) };
    let server = Server::start(&settings).await.unwrap();
    // RESP, and the socket file of the data directory.
    for url in [format!("redis://{}", server.resp()), store] {
        let queue = geartrain::connect(&url).await.unwrap();
        let refused = queue.put("mail", "k", "{}").await;
        assert!(matches!(refused, Err(Error::Refused(Refusal::ReadOnly { .. }))), "{url}: {refused:?}");
        assert!(queue.queues().await.unwrap().is_empty());
    }
    let mut stream = TcpStream::connect(server.http().unwrap().ip().unwrap()).await.unwrap();
    let put = "POST /v1/queues/mail/jobs HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\
               Content-Type: application/json\r\nContent-Length: 13\r\n\r\n{\"klass\":\"k\"}";
    stream.write_all(put.as_bytes()).await.unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).await.unwrap();
    assert!(answer.starts_with("HTTP/1.1 403") && answer.contains("read-only"), "{answer}");
    // SUBMIT_JOB_BG of the function `mail`; the answer is an ERROR.
    let mut stream = TcpStream::connect(server.gearman().unwrap().ip().unwrap()).await.unwrap();
    stream.write_all(b"\0REQ\0\0\0\x12\0\0\0\x06mail\0\0").await.unwrap();
    let mut head = [0; 12];
    stream.read_exact(&mut head).await.unwrap();
    assert_eq!(&head[..8], b"\0RES\0\0\0\x13");
    let mut text = vec![0; u32::from_be_bytes([head[8], head[9], head[10], head[11]]) as usize];
    stream.read_exact(&mut text).await.unwrap();
    assert!(String::from_utf8_lossy(&text).contains("read-only"), "{text:?}");
    server.stop().await;
}
