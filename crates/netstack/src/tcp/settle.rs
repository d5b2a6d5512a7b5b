//! After a flow was touched: what it tells its owner, when it wants to be touched again, and
//! whether it is over.

use alloc::boxed::Box;

use super::flow::{Flow, TcpState};
use super::{FlowSlot, Slot, TcpId};
use crate::Micros;
use crate::config::Congestion;
use crate::route::Hop;
use crate::stack::{Error, Source, Stack};

impl Stack {
    /// Looks at a flow after a segment or time has touched it.
    pub(super) fn settle(&mut self, index: u32) {
        self.look_at(index, Some(self.now));
    }

    /// The same after its owner has, who does not say what time it is. The stack may have slept for long: a wait that began at
    /// the time it knows would be over at once. So `transmit`, which is told, looks again.
    pub(super) fn touched(&mut self, index: u32) {
        self.look_at(index, None);
    }

    fn look_at(&mut self, index: u32, now: Option<Micros>) {
        let Some(flow) = self.tcp.flows[index as usize].flow.as_deref_mut() else {
            return;
        };
        if !flow.is_attached {
            return;
        }
        let tcp = &mut flow.tcp;
        if tcp.wants_room && tcp.is_open() && tcp.send.is_roomy() {
            tcp.wants_room = false;
            tcp.ready.is_writable = true;
        }
        if tcp.is_to_break() {
            tcp.abort();
        }
        let is_news = tcp.ready != super::Ready::default() && !tcp.is_orphan;
        if is_news && !flow.is_queued && flow.listener.is_none() {
            flow.is_queued = true;
            self.sources.push_back(Source::Flow(index));
        }
        let tcp = &mut flow.tcp;
        if tcp.wants() {
            self.tcp.mark_dirty(index);
        } else if tcp.state == TcpState::TimeWait {
            self.enter_time_wait(index);
        } else if tcp.is_over() {
            self.detach(index);
        } else if let Some(now) = now {
            let deadline = tcp.deadline(now);
            self.tcp.timers.set(index, deadline);
        } else {
            self.tcp.mark_dirty(index);
        }
    }

    pub(super) fn flow_timer(&mut self, index: u32) {
        let now = self.now;
        self.counters.flow_visits += 1;
        if let Some(flow) = self.tcp.flow(index) {
            flow.tcp.on_time(now);
            self.settle(index);
        }
    }

    /// The table leads to what answers late segments, the flow to what its owner may still read.
    pub(super) fn enter_time_wait(&mut self, index: u32) {
        let now = self.now;
        let Some(flow) = self.tcp.flow(index) else {
            return;
        };
        let (key, clock) = (flow.key, flow.tcp.clock);
        let numbers = (
            flow.tcp.send.nxt as u32,
            flow.tcp.receive.acknowledged() as u32,
        );
        self.detach(index);
        let (number, gone) = self.tcp.time_waits.push(key, numbers, clock, now);
        if let Some(gone) = gone {
            self.tcp.table.remove(&gone);
        }
        self.tcp.table.insert(key, Slot::TimeWait(number));
    }

    /// The table no longer leads here. Freed when its owner has closed it.
    pub(super) fn detach(&mut self, index: u32) {
        let Some(flow) = self.tcp.flow(index) else {
            return;
        };
        flow.is_attached = false;
        let (key, is_orphan) = (flow.key, flow.tcp.is_orphan);
        if self.tcp.table.get(&key) == Some(&Slot::Flow(index)) {
            self.tcp.table.remove(&key);
        }
        self.tcp.timers.set(index, None);
        if is_orphan {
            self.free_flow(index);
        }
    }

    /// A connection has lost its program. Of too many the oldest are broken off, so that who takes nothing cannot keep room from others
    /// (linux: tcp_max_orphans, which breaks off the new ones).
    pub(super) fn leave(&mut self, id: TcpId) {
        let Some(flow) = self.tcp.flow_of(id) else {
            return;
        };
        if !flow.tcp.leave() {
            return;
        }
        let tcp = &mut self.tcp;
        tcp.left.push_back(id);
        if tcp.left.len() <= tcp.left_max {
            return;
        }
        let flows = &tcp.flows;
        tcp.left.retain(|id| {
            let slot = &flows[id.index as usize];
            let flow = slot.flow.as_deref();
            slot.generation == id.generation
                && flow.is_some_and(|flow| flow.tcp.state != TcpState::Closed)
        });
        // A part of them at once: all are looked at each time.
        while self.tcp.left.len() > self.tcp.left_max - self.tcp.left_max / 8
            && let Some(oldest) = self.tcp.left.pop_front()
            && let Some(flow) = self.tcp.flow(oldest.index)
        {
            flow.tcp.abort();
            self.settle(oldest.index);
        }
    }

    /// Ends connections whose own address is no longer ours.
    pub(crate) fn tcp_end_foreign(&mut self) {
        for index in 0..self.tcp.flows.len() as u32 {
            let routing = &self.routing;
            let Some(flow) = self.tcp.flows[index as usize].flow.as_deref_mut() else {
                continue;
            };
            if !flow.is_attached || routing.is_own(&flow.local.ip()) {
                continue;
            }
            flow.tcp.fail(Error::AddressNotAvailable);
            if !flow.is_queued && !flow.tcp.is_orphan && flow.listener.is_none() {
                flow.is_queued = true;
                self.sources.push_back(Source::Flow(index));
            }
            self.detach(index);
        }
    }

    pub(super) fn free_flow(&mut self, index: u32) {
        let slot = &mut self.tcp.flows[index as usize];
        if let Some(flow) = slot.flow.take() {
            let rings = [flow.tcp.send.ring(), &flow.tcp.receive.ring];
            self.tcp.pool.end_connection(rings);
            slot.generation = slot.generation.wrapping_add(1);
            self.tcp.free_flows.push(index);
        }
    }

    pub(super) fn add_flow(&mut self, mut flow: Flow) -> u32 {
        let remote = flow.remote.ip();
        let is_near =
            matches!(self.routing.hop(&remote), Some(Hop::Neighbor(hop)) if hop == remote);
        // No router's queue is between us.
        if is_near && flow.tcp.options.congestion == Congestion::UntilLoss {
            flow.tcp.send.window.is_unlimited = true;
        }
        let key = flow.key;
        self.tcp.pool.begin_connection();
        let index = match self.tcp.free_flows.pop() {
            Some(index) => index,
            None => {
                self.tcp.flows.push(FlowSlot::default());
                self.tcp.flows.len() as u32 - 1
            }
        };
        self.tcp.flows[index as usize].flow = Some(Box::new(flow));
        self.tcp.table.insert(key, Slot::Flow(index));
        index
    }
}
