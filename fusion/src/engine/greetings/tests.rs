//! Greetings without the shard's own turns: the test runs them when it wants.

use std::net::{Ipv4Addr, TcpListener, TcpStream};
use std::time::Duration;

use sealane_runtime::{Pin, Runtime};
use sealane_transport::endpoint_map::EndpointMap;
use socket2::{Domain, SockAddr, Socket, Type};

use super::super::settings::EngineSettings;
use super::*;
use crate::limits::ACCEPT_PAUSE;
use crate::node::{RecvRequest, RecvWaiter};

/// Longer than a node waits before it calls again, and shorter than it waits for a call.
const BACKOFF: Duration = Duration::from_secs(2);

fn on_a_shard(test: impl FnOnce(&Rc<ShardEngine>) + Send + 'static) {
    let map = EndpointMap::parse("ps:1=127.0.0.1:7000\nworker:1=127.0.0.1:7001\n", "test").unwrap();
    let mut settings = EngineSettings::new(map, &["ps:1"]).unwrap();
    settings.runtime.pin = Pin::Off;
    (settings.slab_send_bytes, settings.slab_receive_bytes) = (1 << 20, 1 << 20);
    let runtime = Runtime::start(settings.runtime.clone()).unwrap();
    let done = runtime.on_shard(0, async move |shard| {
        let node = settings.node(&["127.0.0.1:7000".parse().unwrap()], 0, 1);
        ShardEngine::start(&shard, node, Default::default(), settings).unwrap();
        test(&ShardEngine::current().unwrap());
    });
    done.wait().unwrap();
    runtime.stop().unwrap();
}

fn listener() -> (TcpListener, SocketAddr) {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
    let address = listener.local_addr().unwrap();
    (listener, address)
}

fn listening(engine: &Rc<ShardEngine>, socket: Socket) -> Greetings {
    engine.listen(vec![Listener::new(socket.into(), 0, &engine.settings.tcp)]);
    Greetings::new(engine)
}

/// Makes the node call its peer.
fn call(engine: &ShardEngine) -> (Handle, Hello) {
    engine.with_node(|node, now| {
        let pair = node.pair(0, "worker:1").unwrap();
        let waiter = RecvWaiter::Channel(oneshot::channel().0);
        let deadline = now + BACKOFF * 10;
        node.recv(
            now,
            RecvRequest {
                pair,
                step: 1,
                key: "w",
                deadline,
                destination: None,
                waiter,
                fused: false,
                fail_if_gone: false,
            },
        );
    });
    let orders = engine.take_orders().into_iter().next();
    let Some(ConnectOrder::Dial { peer, hello, .. }) = orders else { panic!("not a call: {orders:?}") };
    (peer, hello)
}

/// Whether the node wants to repeat the call, because it knows that it failed.
fn is_called_again(engine: &ShardEngine, called: Handle) -> bool {
    engine.with_node(|node, now| node.turn(now + BACKOFF));
    let again = |order: &ConnectOrder| matches!(order, ConnectOrder::Dial { peer, .. } if *peer == called);
    engine.take_orders().iter().any(again)
}

#[test]
fn a_listener_that_cannot_accept_rests_and_is_asked_again() {
    on_a_shard(|engine| {
        // A socket that does not listen cannot accept, for a lasting reason, as without descriptors.
        let socket = Socket::new(Domain::IPV4, Type::STREAM, None).unwrap();
        socket.bind(&SockAddr::from(SocketAddr::from((Ipv4Addr::LOCALHOST, 0)))).unwrap();
        let address = socket.local_addr().unwrap().as_socket().unwrap();
        let mut greetings = listening(engine, socket);
        let now = engine.shard.now();
        greetings.turn(now);
        assert!(engine.listeners.borrow()[0].is_watched());

        greetings.ready(0, Readiness::default());
        greetings.turn(now);
        assert!(!engine.listeners.borrow()[0].is_watched() && !greetings.has_work());
        let again = now + ACCEPT_PAUSE;
        assert_eq!(greetings.next_timeout(), Some(again));
        greetings.turn(again - Duration::from_millis(1));
        assert!(!engine.listeners.borrow()[0].is_watched());

        socket2::SockRef::from(&engine.listeners.borrow()[0].descriptor()).listen(1).unwrap();
        let _caller = TcpStream::connect(address).unwrap();
        greetings.turn(again);
        assert!(engine.listeners.borrow()[0].is_watched());
        assert_eq!(greetings.next_timeout(), None);
        greetings.ready(0, Readiness::default());
        greetings.turn(again);
        assert_eq!(greetings.pending.len(), 1);
    });
}

#[test]
fn a_listener_that_cannot_be_watched_is_tried_again_after_a_pause() {
    on_a_shard(|engine| {
        let socket = listener().0.into();
        let source = engine.greetings_source.get().unwrap();
        let mut greetings = listening(engine, socket);
        engine.shard.watch(source, engine.listeners.borrow()[0].descriptor(), 7, Interest::READ).unwrap();
        let now = engine.shard.now();
        greetings.turn(now);
        assert!(!engine.listeners.borrow()[0].is_watched());
        assert_eq!(greetings.next_timeout(), Some(now + ACCEPT_PAUSE));
        engine.shard.unwatch(engine.listeners.borrow()[0].descriptor()).unwrap();
        greetings.turn(now + ACCEPT_PAUSE);
        assert!(engine.listeners.borrow()[0].is_watched());
    });
}

#[test]
fn a_call_whose_socket_cannot_be_watched_has_failed() {
    on_a_shard(|engine| {
        let (_listener, address) = listener();
        let mut greetings = Greetings::new(engine);
        let (peer, hello) = call(engine);
        let dial = Dial::start(
            address,
            (&"127.0.0.1:7001".parse().unwrap(), hello.clone()),
            &engine.settings.tcp,
            &engine.settings.authentication,
        )
        .unwrap();
        let source = engine.greetings_source.get().unwrap();
        // A descriptor can be watched only once.
        engine.shard.watch(source, dial.descriptor(), 7, Interest::READ).unwrap();
        greetings.add(Greeting::Calling { dial, peer, more: Vec::new(), hello });
        assert!(greetings.pending.is_empty());
        assert!(is_called_again(engine, peer));
    });
}

#[test]
fn an_address_that_does_not_answer_in_time_is_followed_by_the_next() {
    on_a_shard(|engine| {
        let ((_mute, first), (second, next)) = (listener(), listener());
        let mut greetings = Greetings::new(engine);
        let (peer, hello) = call(engine);
        greetings.call(peer, Ok(vec![first, next]), hello);
        let now = engine.shard.now();
        greetings.turn(now);
        assert_eq!(greetings.pending.len(), 1);

        greetings.turn(now + engine.settings.handshake_timeout);
        assert_eq!(greetings.pending.len(), 1, "the next address is called");
        second.accept().unwrap();
        assert!(!is_called_again(engine, peer), "the call goes on");

        let [handle] = greetings.pending.select(|_| true)[..] else { panic!("one call") };
        greetings.pending.get_mut(handle).unwrap().deadline = now;
        greetings.turn(now);
        assert!(greetings.pending.is_empty());
        assert!(is_called_again(engine, peer), "no address is left");
    });
}

#[test]
fn a_call_without_a_connection_is_begun_anew_soon_and_one_with_it_has_its_time() {
    on_a_shard(|engine| {
        // The backlog has room for one connection: the other calls are not answered.
        let socket = Socket::new(Domain::IPV4, Type::STREAM, None).unwrap();
        socket.bind(&SockAddr::from(SocketAddr::from((Ipv4Addr::LOCALHOST, 0)))).unwrap();
        socket.listen(0).unwrap();
        let address = socket.local_addr().unwrap().as_socket().unwrap();
        let _first = TcpStream::connect(address).unwrap();
        let mut greetings = Greetings::new(engine);
        let (peer, hello) = call(engine);
        greetings.call(peer, Ok(vec![address]), hello.clone());
        let now = engine.shard.now();
        greetings.turn(now);
        assert_eq!(greetings.next_timeout(), Some(now + CONNECT_PATIENCE));
        greetings.turn(now + CONNECT_PATIENCE);
        assert!(greetings.pending.is_empty() && is_called_again(engine, peer));

        let (_mute, address) = listener();
        greetings.call(peer, Ok(vec![address]), hello);
        greetings.turn(now);
        assert_eq!(greetings.next_timeout(), Some(now + engine.settings.handshake_timeout));
    });
}

#[test]
fn hanging_up_reaches_a_call_whose_name_is_being_looked_up() {
    on_a_shard(|engine| {
        let mut greetings = Greetings::new(engine);
        let (peer, hello) = call(engine);
        let address = "localhost:7001".parse().unwrap();
        greetings.carry_out(ConnectOrder::Dial { peer, address, hello });
        assert!(!greetings.resolver.is_empty());
        greetings.carry_out(ConnectOrder::HangUp(peer));
        assert!(greetings.resolver.is_empty());
    });
}
