//! Ranges of several numbers at once (an address range joined with a port range): which
//! box holds a point.
//!
//! A tree of cuts: each inner node compares one of the point's numbers with one bound
//! and so halves the boxes, as far as they let themselves be halved; a box that lies on
//! both sides of a cut goes to both. A leaf is a short list that is tried in order, so
//! that of boxes that overlap the first one counts. Cuts that would multiply the boxes
//! too often are not made: the tree never holds more than [`COPIES_MAX`] times the boxes.

use alloc::vec::Vec;

/// One range for each number; both ends are included.
pub(crate) type Bounds = Vec<(u128, u128)>;

const LEAF_MAX: usize = 4;
const COPIES_MAX: usize = 24;
/// How often a box is looked for a good cut: bounds the cost of building.
const CANDIDATES: usize = 16;

#[derive(Clone, Debug)]
enum Node {
    /// Points below `bound` in number `field` go to the next node, others to `above`.
    Cut { field: u8, bound: u128, above: u32 },
    /// Positions in `leaves`.
    Leaf { from: u32, to: u32 },
}

#[derive(Clone, Debug)]
pub(crate) struct Boxes {
    fields: usize,
    /// The bounds of all boxes, one after the other, and what each leads to.
    bounds: Vec<(u128, u128)>,
    slots: Vec<u32>,
    nodes: Vec<Node>,
    /// Boxes by number, in order within each leaf.
    leaves: Vec<u32>,
}

impl Boxes {
    /// Where boxes overlap, the first in the list counts.
    pub(crate) fn new(fields: usize, boxes: &[(Bounds, u32)]) -> Boxes {
        let mut made = Boxes {
            fields,
            bounds: boxes
                .iter()
                .flat_map(|(bounds, _)| bounds.iter().copied())
                .collect(),
            slots: boxes.iter().map(|(_, slot)| *slot).collect(),
            nodes: Vec::new(),
            leaves: Vec::new(),
        };
        let mut budget = boxes.len() * COPIES_MAX;
        // Boxes to place, and the cut that waits for its upper half.
        let mut open: Vec<(Vec<u32>, Option<usize>)> =
            alloc::vec![((0..boxes.len() as u32).collect(), None)];
        while let Some((inside, cut)) = open.pop() {
            let here = made.nodes.len() as u32;
            if let Some(Node::Cut { above, .. }) = cut.map(|at| &mut made.nodes[at]) {
                *above = here;
            }
            let best = if inside.len() > LEAF_MAX {
                made.best_cut(&inside)
            } else {
                None
            };
            let cost = |(below, above): (usize, usize)| below + above - inside.len();
            match best {
                Some((field, bound, sizes)) if cost(sizes) <= budget => {
                    budget -= cost(sizes);
                    made.nodes.push(Node::Cut {
                        field: field as u8,
                        bound,
                        above: 0,
                    });
                    let low = |b: &u32| made.bounds_of(*b)[field].0 < bound;
                    let high = |b: &u32| made.bounds_of(*b)[field].1 >= bound;
                    let below = inside.iter().copied().filter(low).collect();
                    let above = inside.iter().copied().filter(high).collect();
                    open.push((above, Some(here as usize)));
                    open.push((below, None));
                }
                _ => {
                    let from = made.leaves.len() as u32;
                    made.leaves.extend(&inside);
                    made.nodes.push(Node::Leaf {
                        from,
                        to: made.leaves.len() as u32,
                    });
                }
            }
        }
        made
    }

    fn bounds_of(&self, number: u32) -> &[(u128, u128)] {
        let at = number as usize * self.fields;
        &self.bounds[at..at + self.fields]
    }

    /// The cut that leaves the larger side smallest, if it leaves less than all of them;
    /// with how many boxes lie below and above.
    fn best_cut(&self, inside: &[u32]) -> Option<(usize, u128, (usize, usize))> {
        let mut best: Option<(usize, u128, (usize, usize))> = None;
        for field in 0..self.fields {
            let mut bounds: Vec<u128> = Vec::with_capacity(inside.len() * 2);
            for number in inside {
                let (low, high) = self.bounds_of(*number)[field];
                bounds.push(low);
                bounds.extend(high.checked_add(1));
            }
            bounds.sort_unstable();
            bounds.dedup();
            let step = bounds.len().div_ceil(CANDIDATES).max(1);
            for bound in bounds.iter().copied().skip(step / 2).step_by(step) {
                let below = inside
                    .iter()
                    .filter(|b| self.bounds_of(**b)[field].0 < bound)
                    .count();
                let above = inside
                    .iter()
                    .filter(|b| self.bounds_of(**b)[field].1 >= bound)
                    .count();
                let larger = below.max(above);
                let better =
                    best.is_none_or(|(.., (b, a))| (larger, below + above) < (b.max(a), a + b));
                if larger < inside.len() && better {
                    best = Some((field, bound, (below, above)));
                }
            }
        }
        best
    }

    #[inline]
    pub(crate) fn find(&self, point: &[u128]) -> Option<u32> {
        let mut at = 0;
        loop {
            match self.nodes.get(at)? {
                Node::Cut {
                    field,
                    bound,
                    above,
                } => {
                    at = if point[usize::from(*field)] < *bound {
                        at + 1
                    } else {
                        *above as usize
                    };
                }
                Node::Leaf { from, to } => {
                    let found = self.leaves[*from as usize..*to as usize]
                        .iter()
                        .find(|number| {
                            let bounds = self.bounds_of(**number);
                            bounds
                                .iter()
                                .zip(point)
                                .all(|((low, high), p)| low <= p && p <= high)
                        });
                    return found.map(|number| self.slots[*number as usize]);
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn finds_the_first_box_that_holds_the_point(
            boxes in prop::collection::vec(prop::collection::vec((0..60u128, 0..30u128), 3), 0..60),
            points in prop::collection::vec(prop::collection::vec(0..90u128, 3), 30),
        ) {
            let boxes: Vec<(Bounds, u32)> = boxes
                .into_iter()
                .enumerate()
                .map(|(at, b)| (b.into_iter().map(|(low, len)| (low, low + len)).collect(), at as u32))
                .collect();
            let tree = Boxes::new(3, &boxes);
            for point in points {
                let holds = |b: &&(Bounds, u32)| b.0.iter().zip(&point).all(|(r, p)| r.0 <= *p && *p <= r.1);
                prop_assert_eq!(tree.find(&point), boxes.iter().find(holds).map(|b| b.1));
            }
        }
    }
}
