//! What must be answered before what: the later turns of sessions and the edges of request graphs.

use crate::data::{
    Error, RecordId, Result,
    plan::{Plan, Shape},
};

/// Successors, join counts and waits of every record, in columns. Read-only after start-up, shared by all workers; absent when
/// every record stands alone.
#[derive(Clone, Debug, Default)]
pub struct Graph {
    /// `first[r]..first[r + 1]` are the positions of record `r`'s successors.
    first: Box<[u32]>,
    successors: Box<[u32]>,
    /// How many records must be answered before each.
    predecessors: Box<[u16]>,
    /// Wait after the last of them, nanoseconds, scaled and capped as the plan says; empty when none waits.
    delay_ns: Box<[u64]>,
    /// Earliest time from the start, nanoseconds, for turns with a time of their own; empty when none has one.
    not_before_ns: Box<[u64]>,
    /// Position of a record with several predecessors among those of its graph; length of the records, empty without joins.
    join: Box<[u16]>,
    /// Most joins of one graph.
    joins_max: u16,
}

/// One record as the index tells it.
#[derive(Clone, Copy, Debug, Default)]
pub struct Edges<'a> {
    /// Records that must be answered first.
    pub predecessors: &'a [u32],
    /// Records that wait for this one.
    pub successors: &'a [u32],
    /// Wait after its predecessors, nanoseconds of the trace.
    pub delay_ns: u64,
    /// Its own time, nanoseconds from the trace's first.
    pub due_ns: Option<u64>,
}

impl Graph {
    /// The graph of `records` records under a plan, as far as they are `inside` the played window; none when no record has a
    /// successor.
    ///
    /// Errors: a record that waits for records of two roots, which would belong to two instances at once.
    pub fn new<'a>(
        records: u32,
        edges: impl Fn(RecordId) -> Edges<'a>,
        inside: impl Fn(u32) -> bool,
        plan: &Plan,
    ) -> Result<Option<Self>> {
        let n = records as usize;
        let mut graph = Self { first: vec![0; n + 1].into(), predecessors: vec![0; n].into(), ..Self::default() };
        let mut successors = Vec::new();
        let mut delay_ns = vec![0u64; n];
        let mut not_before_ns = vec![0u64; n];
        for r in 0..n {
            let e = edges(RecordId(r as u32));
            if inside(r as u32) {
                successors.extend(e.successors.iter().copied().filter(|&s| inside(s)));
            }
            graph.first[r + 1] = successors.len() as u32;
            let before = e.predecessors.iter().filter(|&&p| inside(p)).count();
            graph.predecessors[r] = before.min(u16::MAX as usize) as u16;
            if !e.predecessors.is_empty() {
                delay_ns[r] = wait_ns(e.delay_ns, plan);
                not_before_ns[r] = e.due_ns.map_or(0, |due| own_time_ns(due, plan));
            }
        }
        if successors.is_empty() {
            return Ok(None);
        }
        graph.successors = successors.into();
        if delay_ns.iter().any(|&d| d > 0) {
            graph.delay_ns = delay_ns.into();
        }
        if not_before_ns.iter().any(|&t| t > 0) {
            graph.not_before_ns = not_before_ns.into();
        }
        graph.number_joins()?;
        Ok(Some(graph))
    }

    /// Numbers the joins of each graph from 0, walking it from its root.
    fn number_joins(&mut self) -> Result<()> {
        let n = self.predecessors.len();
        if !self.predecessors.iter().any(|&p| p > 1) {
            return Ok(());
        }
        let mut join = vec![u16::MAX; n];
        let mut owner = vec![u32::MAX; n];
        let mut waiting: Vec<u32> = Vec::new();
        for root in (0..n as u32).filter(|&r| self.predecessors[r as usize] == 0) {
            let mut joins = 0u16;
            waiting.push(root);
            while let Some(r) = waiting.pop() {
                for &s in self.successors(RecordId(r)) {
                    let at = s as usize;
                    if self.predecessors[at] < 2 {
                        waiting.push(s);
                    } else if owner[at] == u32::MAX {
                        // Pushed at its first edge alone, so its own successors are numbered once.
                        (owner[at], join[at]) = (root, joins);
                        joins = joins.checked_add(1).filter(|&j| j < u16::MAX).ok_or_else(|| {
                            Error::usage(format!("record {root} begins a graph of more than 65,534 joins"))
                        })?;
                        waiting.push(s);
                    } else if owner[at] != root {
                        return Err(Error::usage(format!(
                            "record {s} waits for records of two separate graphs, which begin at records {} and {root}",
                            owner[at]
                        )));
                    }
                }
            }
            self.joins_max = self.joins_max.max(joins);
        }
        self.join = join.into();
        Ok(())
    }

    /// The records that wait for this one.
    #[inline]
    pub fn successors(&self, record: RecordId) -> &[u32] {
        &self.successors[self.first[record.index()] as usize..self.first[record.index() + 1] as usize]
    }

    /// How many records must be answered before this one.
    #[inline]
    pub fn predecessors(&self, record: RecordId) -> u16 {
        self.predecessors[record.index()]
    }

    /// When a record is due whose last predecessor ended at `end_ns` from the start, in a pass that began at `pass_ns`.
    #[inline]
    pub fn due_ns(&self, record: RecordId, end_ns: u64, pass_ns: u64) -> u64 {
        let delay = self.delay_ns.get(record.index()).copied().unwrap_or(0);
        let not_before = self.not_before_ns.get(record.index()).copied().unwrap_or(0);
        let not_before = if not_before > 0 { not_before.saturating_add(pass_ns) } else { 0 };
        end_ns.saturating_add(delay).max(not_before)
    }

    /// Position of a join in its graph's table of waiting predecessors; none for a record that waits for one alone.
    #[inline]
    pub fn join(&self, record: RecordId) -> Option<u16> {
        self.join.get(record.index()).copied().filter(|&j| j != u16::MAX)
    }

    /// How many records wait for another, each counted once a wait.
    pub fn edges(&self) -> usize {
        self.successors.len()
    }

    /// Turns of the session that begins at a record, in a graph without forks; none where a record has several successors or
    /// predecessors.
    pub fn turns(&self, root: RecordId) -> Option<u32> {
        let (mut turns, mut at) = (1, root);
        loop {
            match *self.successors(at) {
                [] => return Some(turns),
                [next] if self.predecessors(RecordId(next)) == 1 => {
                    turns += 1;
                    at = RecordId(next);
                }
                _ => return None,
            }
        }
    }

    /// Most joins of one graph.
    pub const fn joins_max(&self) -> u16 {
        self.joins_max
    }
}

fn wait_ns(delay_ns: u64, plan: &Plan) -> u64 {
    if plan.ignore_delays {
        return 0;
    }
    let capped = delay_ns.min(plan.delay_cap_ns);
    match plan.shape {
        Shape::Schedule { speedup, .. } => (capped as f64 / speedup) as u64,
        _ => capped,
    }
}

/// Turns with a time of their own keep it in a schedule that is played without shortened gaps; else their delays rule.
fn own_time_ns(due_ns: u64, plan: &Plan) -> u64 {
    match plan.shape {
        Shape::Schedule { speedup, from_ns, max_gap_ns: u64::MAX, .. } => {
            (due_ns.saturating_sub(from_ns) as f64 / speedup) as u64
        }
        _ => 0,
    }
}
