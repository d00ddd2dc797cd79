//! What is true of every Leasehold lock: names, acquire loop, validity, loss, guards, and the seam for stores
