// PouchDB's server on 127.0.0.1: node couch.mjs PORT. Documents are kept in memory.
import express from "express";
import expressPouchDB from "express-pouchdb";
import http from "pouchdb-adapter-http";
import memory from "pouchdb-adapter-memory";
import PouchDB from "pouchdb-core";
import mapreduce from "pouchdb-mapreduce";
import replication from "pouchdb-replication";

const Kept = [memory, http, mapreduce, replication].reduce((made, plugin) => made.plugin(plugin), PouchDB);
const served = expressPouchDB(Kept.defaults({ adapter: "memory" }), { mode: "minimumForPouchDB", inMemoryConfig: true });
express().use("/", served).listen(Number(process.argv[2]), "127.0.0.1");
