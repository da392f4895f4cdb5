//! Runs the structures that the tasks of the lease share under shuttle, a scheduler that tries many interleavings of
//! threads. The files of `src/lease` are compiled a second time, with the scheduler's locks. Futures are dropped after
//! zero to three polls.
//!
//! A failure prints its schedule, which `shuttle::replay` runs again.

#![allow(dead_code, reason = "these tests use only part of the files that the lease uses")]
#![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

mod sync {
    pub(super) use shuttle::sync::{Arc, Mutex};
}
#[path = "../../src/lease/waiters.rs"]
mod waiters;
#[path = "../../src/lease/watchlist.rs"]
mod watchlist;

use std::future::Future as _;
use std::pin::pin;
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

use shuttle::sync::{Arc, Mutex};
use shuttle::{future, thread};

use waiters::{Waiter, Waiters};
use watchlist::Watchlist;

/// Schedules tried per test. A few hundred are enough for the mistakes that these tests look for.
const SCHEDULES: usize = 5_000;

/// A lease as Redis has it, held or free. A release wakes a waiter.
#[derive(Default)]
struct Lease {
    held: Mutex<bool>,
}

impl Lease {
    fn take(&self) -> bool {
        let mut held = self.held.lock().unwrap();
        !std::mem::replace(&mut *held, true)
    }

    fn release(&self, waiters: &Waiters) {
        *self.held.lock().unwrap() = false;
        waiters.wake("sale", "ada");
    }
}

/// Mirrors `Leases::acquire`. The first `looks` times the waiter wakes by itself, after two polls of its sleep. After
/// that it waits for a wake-up alone: if one is lost, its thread sleeps for ever, and the scheduler reports it.
async fn acquire(lease: &Lease, waiters: &Waiters, looks: usize) {
    if lease.take() {
        return;
    }
    let mut waiter: Waiter = waiters.enter("sale", "ada");
    let mut left = looks;
    while !lease.take() {
        if left == 0 {
            waiter.woken().await;
            continue;
        }
        left -= 1;
        let slept = {
            let mut polled = false;
            let mut woken = pin!(waiter.woken());
            std::future::poll_fn(|context: &mut Context<'_>| match woken.as_mut().poll(context) {
                Poll::Ready(()) => Poll::Ready(true),
                Poll::Pending if polled => Poll::Ready(false),
                Poll::Pending => {
                    polled = true;
                    context.waker().wake_by_ref();
                    Poll::Pending
                }
            })
            .await
        };
        if !slept {
            waiter.wakes_by_itself();
        }
    }
    waiter.satisfied();
}

/// Polls the acquisition `polls` times and drops it. Returns whether it got the lease.
async fn acquire_for(polls: usize, lease: &Lease, waiters: &Waiters) -> bool {
    let mut acquiring = pin!(acquire(lease, waiters, 0));
    let mut left = polls;
    std::future::poll_fn(|context: &mut Context<'_>| {
        if left == 0 {
            return Poll::Ready(false);
        }
        left -= 1;
        match acquiring.as_mut().poll(context) {
            Poll::Ready(()) => Poll::Ready(true),
            Poll::Pending if left == 0 => Poll::Ready(false),
            Poll::Pending => Poll::Pending,
        }
    })
    .await
}

/// Four threads want one lease, each in its own way, and release it if they get it.
fn rush(acquires: impl Fn(usize, &Lease, &Waiters) -> bool + Copy + Send + Sync + 'static) {
    shuttle::check_random(
        move || {
            let (lease, waiters) = (Arc::new(Lease::default()), Waiters::default());
            let tasks: Vec<_> = (0..4)
                .map(|nth| {
                    let (lease, waiters) = (lease.clone(), waiters.clone());
                    thread::spawn(move || {
                        if acquires(nth, &lease, &waiters) {
                            thread::yield_now();
                            lease.release(&waiters);
                        }
                    })
                })
                .collect();
            tasks.into_iter().for_each(|task| task.join().unwrap());
            assert!(waiters.scopes().is_empty() && waiters.len() == 0, "a waiter is left in line");
        },
        SCHEDULES,
    );
}

fn acquire_by_polling(lease: &Lease, waiters: &Waiters, looks: usize) -> bool {
    future::block_on(acquire(lease, waiters, looks));
    true
}

#[test]
fn every_waiter_gets_the_lease_in_any_schedule() {
    rush(|_, lease, waiters| acquire_by_polling(lease, waiters, 0));
}

#[test]
fn a_polling_waiter_loses_no_wake_up() {
    for looks in 1..3 {
        rush(move |nth, lease, waiters| {
            acquire_by_polling(lease, waiters, if nth % 2 == 0 { looks } else { 0 })
        });
    }
}

/// Two of the four give up after some polls. A wake-up that they received must reach those who stay.
#[test]
fn a_waiter_that_leaves_passes_its_wake_up_on() {
    for polls in 0..4 {
        rush(move |nth, lease, waiters| match nth % 2 {
            0 => future::block_on(acquire_for(polls, lease, waiters)),
            _ => acquire_by_polling(lease, waiters, 0),
        });
    }
}

/// Leases are released while the watchdog renews them. A lease that left the list is never put back.
#[test]
fn a_lease_that_left_the_watchlist_never_comes_back() {
    shuttle::check_random(
        || {
            let list: Arc<Watchlist<Mutex<bool>>> = Arc::new(Watchlist::default());
            let begin = Instant::now();
            let watchdog = {
                let list = list.clone();
                thread::spawn(move || {
                    for round in 0..3 {
                        let now = begin + Duration::from_secs(round);
                        for (place, released) in list.take_due(now) {
                            thread::yield_now();
                            // The renewal has been answered.
                            let again = list.again(place, now + Duration::from_millis(1));
                            assert!(
                                again || *released.lock().unwrap(),
                                "a lease that was not released is off the list"
                            );
                        }
                    }
                })
            };
            let holders: Vec<_> = (0..3)
                .map(|nth| {
                    let list = list.clone();
                    thread::spawn(move || {
                        let released = Arc::new(Mutex::new(false));
                        let (place, _) = list.enter(released.clone(), begin + Duration::from_millis(nth));
                        thread::yield_now();
                        *released.lock().unwrap() = true;
                        assert!(list.leave(place));
                        assert!(!list.again(place, begin) && !list.leave(place));
                    })
                })
                .collect();
            holders.into_iter().for_each(|holder| holder.join().unwrap());
            watchdog.join().unwrap();
            assert_eq!(list.len(), 0);
            assert_eq!(list.next(), None);
            assert!(list.take_due(begin + Duration::from_secs(3_600)).is_empty());
        },
        SCHEDULES,
    );
}

/// No due lease is missed or taken twice while others are entered.
#[test]
fn a_due_lease_is_taken_from_the_watchlist_once() {
    shuttle::check_random(
        || {
            let list: Arc<Watchlist<()>> = Arc::new(Watchlist::default());
            let begin = Instant::now();
            let takers: Vec<_> = (0..2)
                .map(|_| {
                    let list = list.clone();
                    thread::spawn(move || {
                        let mut places = Vec::new();
                        for _ in 0..3 {
                            places.extend(list.take_due(begin).into_iter().map(|(place, _)| place));
                            thread::yield_now();
                        }
                        places
                    })
                })
                .collect();
            let entered: Vec<_> = (0..3)
                .map(|_| {
                    let (place, _) = list.enter(Arc::new(()), begin);
                    place
                })
                .collect();
            let mut taken: Vec<_> = takers.into_iter().flat_map(|taker| taker.join().unwrap()).collect();
            taken.extend(list.take_due(begin).into_iter().map(|(place, _)| place));
            taken.sort_unstable();
            assert_eq!(taken, entered);
        },
        SCHEDULES,
    );
}
