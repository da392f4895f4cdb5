//! A TCP proxy that behaves like a bad network: it delays, freezes, resets, leaves connections half open, and loses
//! answers. Each connection between two parts of the stack has one.

use std::net::{Ipv4Addr, SocketAddr};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::tcp::{ReadHalf, WriteHalf};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;
use tokio::task::JoinSet;

/// The state of the network.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Weather {
    /// Everything arrives at once.
    Fair,
    /// Everything arrives, with this delay.
    Slow(Duration),
    /// Nothing arrives in either direction until it thaws. Nothing is lost.
    Frozen,
    /// Requests arrive, answers do not. The connections end afterwards.
    AnswersLost,
    /// Requests are lost without an error. The connections end afterwards.
    HalfOpen,
    /// Connections are closed at once.
    Down,
}

/// A proxy with its own address. It stops when its last clone is dropped.
#[derive(Clone)]
pub struct Proxy {
    address: SocketAddr,
    targets: Arc<Mutex<Vec<SocketAddr>>>,
    weather: Arc<watch::Sender<Weather>>,
    /// Incremented to reset all connections.
    resets: Arc<watch::Sender<u64>>,
    _task: Arc<tokio_util::task::AbortOnDropHandle<()>>,
}

impl Proxy {
    /// Listens on a free port of 127.0.0.1. Without a target, connections are closed.
    pub async fn open() -> std::io::Result<Self> {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await?;
        let address = listener.local_addr()?;
        let targets: Arc<Mutex<Vec<SocketAddr>>> = Arc::default();
        let weather = Arc::new(watch::Sender::new(Weather::Fair));
        let resets = Arc::new(watch::Sender::new(0));
        let work = serve(listener, targets.clone(), weather.clone(), resets.clone());
        let task = Arc::new(tokio_util::task::AbortOnDropHandle::new(tokio::spawn(work)));
        Ok(Self { address, targets, weather, resets, _task: task })
    }

    /// The address for clients.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// New connections go to these targets in turn, skipping those that do not answer. Existing ones stay.
    pub fn point_to(&self, targets: Vec<SocketAddr>) {
        *self.targets.lock().unwrap_or_else(|poisoned| poisoned.into_inner()) = targets;
    }

    /// Changes the weather, for existing connections too.
    pub fn set(&self, weather: Weather) {
        let before = self.weather.send_replace(weather);
        // Bytes were lost in the middle of these streams, so they cannot continue.
        let lossy = matches!(before, Weather::AnswersLost | Weather::HalfOpen);
        if (lossy && weather != before) || weather == Weather::Down {
            self.reset();
        }
    }

    /// Ends all connections at once with RST.
    pub fn reset(&self) {
        self.resets.send_modify(|resets| *resets += 1);
    }
}

async fn serve(
    listener: TcpListener,
    targets: Arc<Mutex<Vec<SocketAddr>>>,
    weather: Arc<watch::Sender<Weather>>,
    resets: Arc<watch::Sender<u64>>,
) {
    let mut connections = JoinSet::new();
    let mut turn = 0_usize;
    loop {
        while connections.try_join_next().is_some() {}
        let Ok((client, _)) = listener.accept().await else {
            tokio::time::sleep(Duration::from_millis(10)).await;
            continue;
        };
        turn = turn.wrapping_add(1);
        let mut order = targets.lock().unwrap_or_else(|poisoned| poisoned.into_inner()).clone();
        if !order.is_empty() {
            let first = turn % order.len();
            order.rotate_left(first);
        }
        let (weather, mut resets) = (weather.subscribe(), resets.subscribe());
        connections.spawn(async move {
            tokio::select! {
                () = carry(client, order, weather) => {}
                _ = resets.changed() => {}
            }
        });
    }
}

async fn carry(mut client: TcpStream, targets: Vec<SocketAddr>, mut weather: watch::Receiver<Weather>) {
    // Close with RST and drop unsent bytes: a FIN would claim that the stream is complete.
    let _ = client.set_zero_linger();
    let _ = client.set_nodelay(true);
    if *weather.borrow() == Weather::Down {
        return;
    }
    let _ = weather.wait_for(|weather| *weather != Weather::Frozen).await;
    let mut server = None;
    for target in targets {
        if let Ok(stream) = TcpStream::connect(target).await {
            server = Some(stream);
            break;
        }
    }
    let Some(mut server) = server else { return };
    let _ = server.set_zero_linger();
    let _ = server.set_nodelay(true);
    // Borrowed halves, because owned ones send a FIN when they are dropped.
    let (client_reads, client_writes) = client.split();
    let (server_reads, server_writes) = server.split();
    tokio::join!(
        pump(client_reads, server_writes, weather.clone(), Weather::HalfOpen),
        pump(server_reads, client_writes, weather, Weather::AnswersLost),
    );
}

async fn pump(
    mut from: ReadHalf<'_>,
    mut to: WriteHalf<'_>,
    mut weather: watch::Receiver<Weather>,
    loses: Weather,
) {
    let mut buffer = vec![0; 256 * 1024];
    // After a loss nothing more may arrive, although the weather is fair a moment before the connection is reset: TCP never
    // has a gap.
    let mut has_lost = false;
    loop {
        let length = match from.read(&mut buffer).await {
            Ok(0) | Err(_) => break,
            Ok(length) => length,
        };
        let _ = weather.wait_for(|weather| *weather != Weather::Frozen).await;
        let now = *weather.borrow();
        if let Weather::Slow(by) = now {
            tokio::time::sleep(by).await;
        }
        has_lost |= now == loses;
        if has_lost {
            continue;
        }
        if to.write_all(&buffer[..length]).await.is_err() {
            break;
        }
    }
    let _ = to.shutdown().await;
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(flavor = "multi_thread")]
    async fn no_byte_arrives_after_a_lost_one() {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.expect("a port");
        let proxy = Proxy::open().await.expect("a proxy");
        proxy.point_to(vec![listener.local_addr().expect("its address")]);
        for nth in 0..50 {
            proxy.set(Weather::Fair);
            let mut client = TcpStream::connect(proxy.address()).await.expect("the proxy listens");
            let (mut server, _) = listener.accept().await.expect("the proxy connects");
            // Numbered, without a pause, while one is lost.
            let sending = tokio::spawn(async move {
                for byte in 0..=u8::MAX {
                    if server.write_all(&[byte]).await.is_err() {
                        return;
                    }
                    tokio::task::yield_now().await;
                }
            });
            let mut first = [0];
            client.read_exact(&mut first).await.expect("the first byte");
            proxy.set(Weather::AnswersLost);
            tokio::time::sleep(Duration::from_micros(nth * 10)).await;
            proxy.set(Weather::Fair);
            let mut rest = Vec::new();
            let _ = client.read_to_end(&mut rest).await;
            let arrived: Vec<u8> = first.into_iter().chain(rest).collect();
            let without_gap: Vec<u8> = (0..=u8::MAX).take(arrived.len()).collect();
            assert_eq!(arrived, without_gap);
            let _ = sending.await;
        }
    }
}
