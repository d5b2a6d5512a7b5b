//! The network as the application's tasks see it: sockets that a task waits at.
//!
//! ```text
//!   stack.event() ──► dispatch ──► the signal of a flow, a listener, a port ──► its task
//!   task ──► stack (tcp_receive_with, tcp_send, ...) ──► frames leave in the main loop
//! ```
//! Everything is on one thread; the stack is borrowed for the length of a call and never across
//! a wait.

use alloc::rc::Rc;
use alloc::vec::Vec;
use core::cell::{RefCell, RefMut};
use fordway_executor::Signal;
use fordway_netstack::{Event, ListenerId, Stack, TcpId, TcpOptions, UdpId};

pub struct Net {
    stack: RefCell<Stack>,
    /// By the flow's index. A signal is kept for the next flow of that index: being woken once for
    /// nothing is cheaper than telling the two apart.
    flows: RefCell<Vec<Rc<Signal>>>,
    listeners: RefCell<Vec<(ListenerId, Rc<Signal>)>>,
    ports: RefCell<Vec<(UdpId, Rc<Signal>)>>,
    pub ping: Signal,
    pub lease: Signal,
    pub name: Signal,
}

impl Net {
    pub fn new(stack: Stack) -> Rc<Net> {
        Rc::new(Net {
            stack: RefCell::new(stack),
            flows: RefCell::default(),
            listeners: RefCell::default(),
            ports: RefCell::default(),
            ping: Signal::new(),
            lease: Signal::new(),
            name: Signal::new(),
        })
    }

    pub fn stack(&self) -> RefMut<'_, Stack> {
        self.stack.borrow_mut()
    }

    /// Wakes whoever waits for what has happened.
    pub fn dispatch(&self) {
        let mut stack = self.stack.borrow_mut();
        while let Some(event) = stack.event() {
            match event {
                Event::Tcp(id, _) => {
                    if let Some(signal) = self.flows.borrow().get(id.index()) {
                        signal.set();
                    }
                }
                Event::Accept(id) => set(&self.listeners, id),
                Event::Udp(id) => set(&self.ports, id),
                Event::Ping => self.ping.set(),
                Event::Lease => self.lease.set(),
                Event::Dns => self.name.set(),
            }
        }
    }

    /// Wakes every connection's task, so that it looks at its deadline.
    pub fn wake_all(&self) {
        self.flows.borrow().iter().for_each(|signal| signal.set());
    }

    /// The signal of a connection.
    pub fn flow(&self, id: TcpId) -> Rc<Signal> {
        let mut flows = self.flows.borrow_mut();
        while flows.len() <= id.index() {
            flows.push(Rc::default());
        }
        flows[id.index()].clone()
    }

    /// Listens on a port of every address.
    pub fn listen(
        &self,
        port: u16,
        backlog: usize,
        options: TcpOptions,
    ) -> Result<(ListenerId, Rc<Signal>), fordway_netstack::Error> {
        let id = self.stack().tcp_listen(None, port, backlog, options)?;
        let signal = Rc::new(Signal::new());
        self.listeners.borrow_mut().push((id, signal.clone()));
        Ok((id, signal))
    }

    /// Binds a UDP port of every address.
    #[cfg(feature = "kv")]
    pub fn bind(&self, port: u16) -> Result<(UdpId, Rc<Signal>), fordway_netstack::Error> {
        let id = self.stack().udp_bind(None, port)?;
        let signal = Rc::new(Signal::new());
        self.ports.borrow_mut().push((id, signal.clone()));
        Ok((id, signal))
    }
}

fn set<Id: PartialEq>(signals: &RefCell<Vec<(Id, Rc<Signal>)>>, id: Id) {
    if let Some((_, signal)) = signals.borrow().iter().find(|(each, _)| *each == id) {
        signal.set();
    }
}
