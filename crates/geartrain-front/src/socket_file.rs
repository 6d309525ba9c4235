//! Unix sockets that clients find by a file.

use std::fs::{self, Permissions};
use std::io;
use std::os::unix::fs::{FileTypeExt as _, MetadataExt as _, PermissionsExt as _};
use std::path::{Path, PathBuf};

use socket2::{Domain, SockAddr, Socket, Type};
use tokio::net::UnixListener;

/// Only the user of the process may connect: over a socket a client may do everything.
const MODE: u32 = 0o600;

/// How many connections may wait to be accepted.
const BACKLOG: i32 = 1_024;

/// The file of a listening socket, removed when this is dropped.
#[derive(Debug)]
pub struct SocketFile {
    path: PathBuf,
    /// Device and inode: another process may have replaced the file.
    identity: (u64, u64),
}

impl SocketFile {
    /// Listens on a socket file. One that a dead process has left is replaced; any other file is an error.
    pub fn listen(path: &Path) -> io::Result<(UnixListener, SocketFile)> {
        remove_stale(path)?;
        let socket = Socket::new(Domain::UNIX, Type::STREAM, None)?;
        socket.bind(&SockAddr::unix(path)?)?;
        let identity = identity(path)?;
        let file = SocketFile { path: path.to_owned(), identity };
        // Before anything can connect, and whatever the umask is.
        fs::set_permissions(path, Permissions::from_mode(MODE))?;
        socket.listen(BACKLOG)?;
        socket.set_nonblocking(true)?;
        Ok((UnixListener::from_std(socket.into())?, file))
    }
}

impl Drop for SocketFile {
    fn drop(&mut self) {
        if identity(&self.path).is_ok_and(|identity| identity == self.identity) {
            // If that fails, the next process replaces it.
            let _ = fs::remove_file(&self.path);
        }
    }
}

fn identity(path: &Path) -> io::Result<(u64, u64)> {
    fs::symlink_metadata(path).map(|file| (file.dev(), file.ino()))
}

fn remove_stale(path: &Path) -> io::Result<()> {
    let file = match fs::symlink_metadata(path) {
        Ok(file) => file,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
        Err(error) => return Err(error),
    };
    if !file.file_type().is_socket() {
        return Err(io::Error::new(io::ErrorKind::AlreadyExists, "there is a file that is no socket"));
    }
    // Without waiting for a program that accepts nothing.
    let client = Socket::new(Domain::UNIX, Type::STREAM, None)?;
    client.set_nonblocking(true)?;
    match client.connect(&SockAddr::unix(path)?) {
        Err(error) if error.kind() == io::ErrorKind::ConnectionRefused => fs::remove_file(path),
        Err(error) if error.kind() != io::ErrorKind::WouldBlock => Err(error),
        _ => Err(io::ErrorKind::AddrInUse.into()),
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "in a test, what goes wrong should stop it")]
mod tests {
    use geartrain_testkit::peers::Scratch;

    use super::*;

    #[tokio::test]
    async fn a_socket_file_is_private_and_removed_at_the_end() {
        let scratch = Scratch::new("socket");
        let path = scratch.path().join("queue.sock");
        let (listener, file) = SocketFile::listen(&path).unwrap();
        assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
        let (connected, accepted) = tokio::join!(tokio::net::UnixStream::connect(&path), listener.accept());
        assert!(connected.is_ok() && accepted.is_ok());
        assert_eq!(SocketFile::listen(&path).unwrap_err().kind(), io::ErrorKind::AddrInUse);
        drop((listener, file));
        assert!(!path.exists());
    }

    #[tokio::test]
    async fn only_the_socket_of_a_dead_process_is_replaced() {
        let scratch = Scratch::new("socket");
        let path = scratch.path().join("queue.sock");
        // Closed, and its file left.
        drop(std::os::unix::net::UnixListener::bind(&path).unwrap());
        assert!(path.exists());
        drop(SocketFile::listen(&path).unwrap());
        for make in [|path: &Path| fs::write(path, "jobs"), |path: &Path| fs::create_dir(path)] {
            let path = scratch.path().join("other");
            make(&path).unwrap();
            assert_eq!(SocketFile::listen(&path).unwrap_err().kind(), io::ErrorKind::AlreadyExists);
            assert!(path.exists());
            let _ = fs::remove_file(&path);
        }
        // A link to a socket is not followed.
        let (_listener, _file) = SocketFile::listen(&path).unwrap();
        let link = scratch.path().join("link");
        std::os::unix::fs::symlink(&path, &link).unwrap();
        assert!(SocketFile::listen(&link).is_err() && link.exists());
    }

    #[tokio::test]
    async fn the_file_of_another_process_is_left_alone() {
        let scratch = Scratch::new("socket");
        let path = scratch.path().join("queue.sock");
        let (_listener, file) = SocketFile::listen(&path).unwrap();
        fs::remove_file(&path).unwrap();
        // So that the new file has another inode.
        fs::write(scratch.path().join("filler"), "").unwrap();
        let _other = std::os::unix::net::UnixListener::bind(&path).unwrap();
        drop(file);
        assert!(path.exists());
    }
}
