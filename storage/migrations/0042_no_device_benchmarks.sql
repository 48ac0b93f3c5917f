-- No rule reads the results of device benchmarks, and a program that is written for them can fake the
-- figures: the daemon takes and shows no more of them.

DROP TABLE device_benchmarks;
