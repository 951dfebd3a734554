using { managed } from '@sap/cds/common';

@requires: 'authenticated-user'
service shop {
  entity Orders : managed {
    key id : String(15);
    title  : String;
    amount : Integer64;
  }
}
