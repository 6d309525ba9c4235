//! Certificates for tests: an authority that signs them, and their files.

use std::path::PathBuf;

use rcgen::{BasicConstraints, CertificateParams, CertifiedIssuer, DnType, IsCa, KeyPair};

use crate::peers::Scratch;

/// A certificate authority.
pub struct Authority {
    issuer: CertifiedIssuer<'static, KeyPair>,
}

impl Default for Authority {
    fn default() -> Authority {
        Authority::new()
    }
}

impl Authority {
    /// A new one, which nothing trusts yet.
    pub fn new() -> Authority {
        let mut about = CertificateParams::new(Vec::new()).expect("no names are valid names");
        about.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        about.distinguished_name.push(DnType::CommonName, "an authority for tests");
        let key = KeyPair::generate().expect("keys can be made");
        Authority { issuer: CertifiedIssuer::self_signed(about, key).expect("it signs itself") }
    }

    /// Writes its certificate into a file.
    pub fn write(&self, scratch: &Scratch, name: &str) -> PathBuf {
        write(scratch, name, &self.issuer.pem())
    }

    /// Writes a new certificate for a host name or an IP address, and its key.
    pub fn sign(&self, scratch: &Scratch, name: &str, host: &str) -> (PathBuf, PathBuf) {
        let key = KeyPair::generate().expect("keys can be made");
        let mut about = CertificateParams::new(vec![host.to_owned()]).expect("it is a name");
        // OpenSSL takes a certificate for self-signed if its name is that of its issuer.
        about.distinguished_name.push(DnType::CommonName, host);
        let certificate = about.signed_by(&key, &self.issuer).expect("it is an authority");
        (
            write(scratch, &format!("{name}.pem"), &certificate.pem()),
            write(scratch, &format!("{name}.key"), &key.serialize_pem()),
        )
    }
}

fn write(scratch: &Scratch, name: &str, text: &str) -> PathBuf {
    let file = scratch.path().join(name);
    std::fs::write(&file, text).expect("there is room for a file");
    file
}
